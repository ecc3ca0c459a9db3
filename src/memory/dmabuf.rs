//! Memory of another device.

use super::opaque::{OpaqueMemory, sealed::Sealed};
use super::registration::Exported;
use crate::seal::Key;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

/// A part of a dma-buf: memory that another driver exports as a file descriptor, such as that of a GPU.
///
/// Registered by [`register_opaque`](crate::ProtectionDomain::register_opaque) for peers; it comes back from
/// [`deregister`](super::OpaqueRegion::deregister). The region has no view for the processor: whether and how it reaches
/// that memory is between the program and the exporting driver. What the driver maps for it is changed by peers at any time.
///
/// Length and offset are multiples of 8. Peers name the first byte by `offset`, or by 0 with
/// [`ZeroBased`](super::ZeroBased) where `offset` is a multiple of the page length.
///
/// # Examples
///
/// ```no_run
/// use interlock::{Brand, DmaBuf, OpaqueRegion, ProtectionDomain, RegisterFailure, RemoteWrite};
/// use std::os::fd::OwnedFd;
///
/// fn grant<B: Brand>(
///     domain: &ProtectionDomain<B>,
///     exported: OwnedFd,
/// ) -> Result<OpaqueRegion<B, RemoteWrite, DmaBuf>, RegisterFailure> {
///     Ok(domain.register_opaque(DmaBuf::new(exported, 0, 1 << 20))?)
/// }
/// ```
///
/// # References
///
/// `ibv_reg_dmabuf_mr(3)`.
#[derive(Debug)]
#[doc(alias = "ibv_reg_dmabuf_mr")]
#[doc(alias = "dma_buf")]
pub struct DmaBuf {
    exported: OwnedFd,
    offset: u64,
    len_bytes: usize,
}

impl DmaBuf {
    /// `len_bytes` from `offset` of a dma-buf. What is exported, and how much of it there is, the device checks when it is
    /// registered.
    pub fn new(exported: OwnedFd, offset: u64, len_bytes: usize) -> Self {
        Self { exported, offset, len_bytes }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// Whether it has no bytes, and cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Where it starts in the dma-buf, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.exported.as_fd()
    }
}

impl From<DmaBuf> for OwnedFd {
    fn from(memory: DmaBuf) -> Self {
        memory.exported
    }
}

impl OpaqueMemory for DmaBuf {}
impl Sealed for DmaBuf {
    fn exported(&self, _: Key) -> Option<Exported> {
        Some(Exported { fd: self.exported.as_raw_fd(), offset: self.offset })
    }
}

impl DmaBuf {
    /// Not an address of this process: what the keys call the first byte.
    pub(super) fn first_byte(&self) -> *mut u8 {
        ptr::without_provenance_mut(self.offset as usize)
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}
