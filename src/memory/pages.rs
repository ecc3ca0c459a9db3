//! Memory in whole pages of its own, which the library maps.

use crate::os::PrivateMapping;
use std::ops::{Deref, DerefMut};
use std::{fmt, io};

/// Zeroed memory in whole pages of its own: a private anonymous map, `mmap(2)`.
///
/// Registering pins whole pages, and a fork may treat pinned pages differently. Memory in pages of its own keeps both
/// away from other data.
pub struct Pages {
    /// At least `len` bytes.
    pub(super) map: PrivateMapping,
    pub(super) len: usize,
}

/// The system did not map that many bytes.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {len_bytes} bytes")]
pub struct NoPages {
    /// How many bytes were to be mapped.
    pub len_bytes: usize,
    /// What the system answered.
    pub source: io::Error,
}

impl Pages {
    /// `len_bytes` zeroed bytes.
    ///
    /// # Errors
    ///
    /// [`NoPages`]: the system does not map that many.
    pub fn new(len_bytes: usize) -> Result<Self, NoPages> {
        let map = PrivateMapping::new(len_bytes, 0).map_err(|source| NoPages { len_bytes, source })?;
        Ok(Self { map, len: len_bytes })
    }
}

impl Deref for Pages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.map.as_slice().get(..self.len).unwrap_or_default()
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.map.as_mut_slice().get_mut(..self.len).unwrap_or_default()
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("len", &self.len).finish_non_exhaustive()
    }
}
