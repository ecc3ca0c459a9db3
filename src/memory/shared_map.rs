//! Memory that other processes may map too.
//!
//! Another process may write it at any moment, so the program never borrows it. The program copies and loads words, by
//! `exposed`.
//!
//! ASSUMPTION: another process's access to a shared map interferes with relaxed atomic loads and stores of aligned
//! words no more than another thread's relaxed atomic ones would.

use super::registration::sealed::Owner;
use super::registration::{Parts, TakenApart};
use crate::os::{self, Mapping};
use crate::seal::Key;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fmt, fs::File, io};

/// Memory that other processes may have mapped too: a shared map of a memory file, or of any other regular file.
///
/// It is registered for peers by [`register_opaque`](crate::ProtectionDomain::register_opaque), and comes back from
/// [`deregister`](super::OpaqueRegion::deregister). It gives no slice, because other processes may write it at any
/// time; the region copies and loads words of it.
///
/// [`new`](Self::new) makes a memory file that cannot shrink. If a mapped file shrinks, the system ends the process
/// (`SIGBUS`) at the next access beyond the new end. So give [`of_file`](Self::of_file) only files of processes that
/// you trust not to shrink them, or ask [`cannot_shrink`](Self::cannot_shrink).
///
/// Since Linux 6.5 the kernel refuses (`EFAULT`) to register a file for writing, except on file systems in memory:
/// memory files, tmpfs and hugetlbfs.
///
/// # References
///
/// `memfd_create(2)`, `mmap(2)`, `fcntl(2)` (file seals).
#[doc(alias = "memfd_create")]
#[doc(alias = "MAP_SHARED")]
pub struct SharedMap {
    /// A map of at least one byte of `file`.
    map: Mapping,
    file: OwnedFd,
}

/// Why a file was not mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSharedMap {
    /// There are no bytes to map.
    #[error("a shared map must have at least one byte")]
    Empty,
    /// Not a regular file: a map of a device, for example, would not be memory.
    #[error("only a regular file or a memory file can be mapped")]
    NotAFile,
    /// The file is too short. An access beyond its end would end the process.
    #[error("{len_bytes} bytes at offset {offset} do not fit inside the file, which has {file_bytes} bytes")]
    TooShort {
        /// Where the map was to start.
        offset: u64,
        /// How long it was to be.
        len_bytes: usize,
        /// How long the file is.
        file_bytes: u64,
    },
    /// The system answered with an error.
    #[error("{call} failed")]
    System {
        /// The call.
        call: &'static str,
        /// Its answer. For `mmap`, `EINVAL` means that the offset (on hugetlbfs: or the length) is not a multiple of
        /// the page length, and `EACCES` or `EPERM` that the file is not open for reading and writing, or is sealed.
        source: io::Error,
    },
}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> NoSharedMap {
    move |source| NoSharedMap::System { call, source }
}

impl SharedMap {
    /// `len_bytes` zeroed bytes of a new memory file, which cannot shrink. `name` shows in `/proc/PID/maps`.
    ///
    /// `memfd_create(2)`. The file is closed when the process executes another program. To pass it on, send
    /// [`as_fd`](AsFd::as_fd) by a Unix socket, or clear `FD_CLOEXEC` on a clone.
    ///
    /// # Errors
    ///
    /// [`NoSharedMap`]: no bytes, or the system's error.
    pub fn new(name: &str, len_bytes: usize) -> Result<Self, NoSharedMap> {
        if len_bytes == 0 {
            return Err(NoSharedMap::Empty);
        }
        let file = File::from(os::memory_file(name).map_err(failed("memfd_create"))?);
        file.set_len(len_bytes as u64).map_err(failed("ftruncate"))?;
        os::add_seals(file.as_fd(), libc::F_SEAL_SHRINK).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        Self::of_file(file.into(), 0, len_bytes)
    }

    /// Maps `len_bytes` from `offset` of a file that is open for reading and writing, such as a memory file that
    /// another process made. `offset` is a multiple of the page length. On hugetlbfs, `offset` and `len_bytes` are
    /// multiples of the length of its pages.
    ///
    /// Peers that may write the region write the file.
    ///
    /// # Errors
    ///
    /// [`NoSharedMap`]; the file is closed.
    pub fn of_file(file: OwnedFd, offset: u64, len_bytes: usize) -> Result<Self, NoSharedMap> {
        if len_bytes == 0 {
            return Err(NoSharedMap::Empty);
        }
        let file = File::from(file);
        let about = file.metadata().map_err(failed("fstat"))?;
        if !about.is_file() {
            return Err(NoSharedMap::NotAFile);
        }
        let too_short = || NoSharedMap::TooShort { offset, len_bytes, file_bytes: about.len() };
        offset.checked_add(len_bytes as u64).filter(|&end| end <= about.len()).ok_or_else(too_short)?;
        let start = libc::off_t::try_from(offset).map_err(|_| too_short())?;
        let map = Mapping::shared(&file, start, len_bytes).map_err(failed("mmap"))?;
        Ok(Self { map, file: file.into() })
    }

    /// Its length in bytes, at least 1. To be registered it must be a multiple of 8.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether nobody can shrink the file any more: a memory file with the seal `F_SEAL_SHRINK`, as [`new`](Self::new)
    /// makes.
    #[doc(alias = "F_SEAL_SHRINK")]
    pub fn cannot_shrink(&self) -> bool {
        os::seals(self.file.as_fd()).is_ok_and(|seals| seals & libc::F_SEAL_SHRINK != 0)
    }
}

impl AsFd for SharedMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for SharedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMap").field("len", &self.len()).field("file", &self.file).finish_non_exhaustive()
    }
}

impl Owner for SharedMap {
    type Kept = Self;
    type Freed = Self;

    fn take_apart(self, _: Key) -> Parts<Self> {
        Parts::of(self.map.as_ptr(), self.map.len(), self)
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        parts.into_kept()
    }
}
