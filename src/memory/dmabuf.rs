//! Memory of another device.

use super::registration::sealed::Owner;
use super::registration::{Exported, Parts, TakenApart};
use crate::seal::Key;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

/// A part of a dma-buf: memory that another driver exports as a file descriptor, such as that of a GPU.
///
/// It is registered for peers by [`register_opaque`](crate::ProtectionDomain::register_opaque), and comes back from
/// [`deregister`](super::OpaqueRegion::deregister). The region gives the processor no view of the memory; whether and
/// how the program reaches it is between the program and the exporting driver. If the program maps the memory through
/// that driver, peers may change it at any time.
///
/// Length and offset are multiples of 8. For peers the address of the first byte is `offset`; with
/// [`ZeroBased`](crate::access::ZeroBased) it is 0, and `offset` must be a multiple of the page length.
///
/// # Examples
///
/// ```no_run
/// use interlock::{Brand, ProtectionDomain, RemoteWrite};
/// use interlock::error::RegisterFailure;
/// use interlock::memory::{DmaBuf, OpaqueRegion};
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
    /// `len_bytes` from `offset` of a dma-buf. The device checks the descriptor and its length at registration.
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

impl Owner for DmaBuf {
    type Kept = Self;
    type Freed = Self;

    fn take_apart(self, _: Key) -> Parts<Self> {
        let exported = Exported { fd: self.exported.as_raw_fd(), offset: self.offset };
        // The bytes have no address in this process, so the pointer to the first byte is null.
        Parts { exported: Some(exported), ..Parts::of(ptr::null_mut(), self.len_bytes, self) }
    }

    fn rebuild(parts: TakenApart<Self>) -> Self {
        parts.into_kept()
    }
}
