//! Regions over memory that the program never borrows.

use super::access::{self, Exposed};
use super::region::Whole;
use super::{DeregisterError, DmaBuf, OutOfBounds, Plain, RegisterError, RemoteRegion, SharedMap, exposed};
use crate::domain::brand::Branded;
use crate::domain::{Brand, ProtectionDomain};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Memory that somebody besides this program and its device may write: a [`SharedMap`](super::SharedMap) (other
/// processes) or a [`DmaBuf`](super::DmaBuf) (other devices). Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory of that kind",
    label = "not a `SharedMap` or `DmaBuf`",
    note = "memory that only this program and its device write is registered by `register`"
)]
pub trait OpaqueMemory: Sized + sealed::Sealed {}

mod sealed {
    #[allow(unnameable_types, reason = "seals `OpaqueMemory`")]
    pub trait Sealed: crate::memory::registration::sealed::Owner + Send + 'static {}
}

impl OpaqueMemory for SharedMap {}
impl sealed::Sealed for SharedMap {}
impl OpaqueMemory for DmaBuf {}
impl sealed::Sealed for DmaBuf {}

/// Registered memory that this program never borrows, because another process ([`SharedMap`](super::SharedMap)) or
/// another device ([`DmaBuf`](super::DmaBuf)) may write it. Peers reach it with the rights `A`.
///
/// It gives no slice and no [`Buffer`](super::Buffer), whatever the rights. The program copies and loads words of a
/// `SharedMap`, as of other memory that peers write; it does not reach the memory of a `DmaBuf` at all.
///
/// # Rules
///
/// The compiler enforces each of them; programs that break them are in `ui-tests/memory`.
///
/// - M23: what other processes or devices write is never a slice and never a buffer.
/// - M24: memory that the processor may not reach is not read by it.
#[doc(alias = "ibv_mr")]
#[must_use = "dropping it ends the registration"]
pub struct OpaqueRegion<B, A, M> {
    whole: Whole<A, M>,
    brand: Branded<B>,
}

impl<B: Brand> ProtectionDomain<B> {
    /// Registers memory that others may write, for peers: a [`SharedMap`] or a [`DmaBuf`].
    ///
    /// `ibv_reg_mr(3)` or `ibv_reg_dmabuf_mr(3)`.
    ///
    /// # Errors
    ///
    /// [`RegisterError`] gives the memory back. `EFAULT` for a map of a file: the kernel does not let devices write
    /// files of that file system. [`Unsupported`](super::RegisterFailure::Unsupported) for a dma-buf: the device cannot
    /// register one. (Linux soft-RoCE and the soft device cannot.)
    ///
    /// # Examples
    ///
    /// A peer writes into memory that another process has mapped:
    ///
    /// ```
    /// use interlock::{Context, RemoteWrite};
    /// use interlock::memory::SharedMap;
    /// interlock::domain! { struct Docs; }
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let map = SharedMap::new("mailbox", 4096)?;
    /// // map.as_fd() goes to the other process, by a Unix socket or by inheritance.
    /// let region = domain.register_opaque::<RemoteWrite, _>(map)?;
    /// let grant = region.remote(); // goes to the peer
    /// assert_eq!(region.load(0)?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_opaque<A: Exposed, M: OpaqueMemory>(
        &self,
        memory: M,
    ) -> Result<OpaqueRegion<B, A, M>, RegisterError<M>> {
        Ok(OpaqueRegion { whole: Whole::register(&self.inner, memory)?, brand: PhantomData })
    }
}

impl<B: Brand, A: Exposed, M: OpaqueMemory> OpaqueRegion<B, A, M> {
    /// Its length in bytes, at least 8.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.whole.len_bytes()
    }

    /// The record of the region for a peer, as [`MemoryRegion::remote`](super::MemoryRegion::remote).
    ///
    /// The address of a dma-buf's first byte is its offset in the dma-buf.
    pub fn remote(&self) -> RemoteRegion<A> {
        self.whole.inner().remote()
    }

    /// Ends the registration and gives the memory back.
    ///
    /// `ibv_dereg_mr(3)`. Afterwards no peer reaches it.
    ///
    /// # Errors
    ///
    /// As [`MemoryRegion::deregister`](crate::MemoryRegion::deregister).
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<M, DeregisterError<Self>> {
        self.whole.deregister().map_err(|error| error.map(|whole| Self { whole, brand: PhantomData }))
    }
}

/// Words of a shared map. The region lends no slice, so `&self` is enough to write.
impl<B: Brand, A: Exposed> OpaqueRegion<B, A, SharedMap> {
    /// Copies the bytes at `offset` out, word by word, as [`MemoryRegion::read_into`](super::MemoryRegion::read_into).
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn read_into(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        exposed::copy_out(self.whole.inner(), offset, bytes)
    }

    /// Copies `bytes` in at `offset`, word by word, as [`MemoryRegion::write_from`](super::MemoryRegion::write_from).
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn write_from(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        exposed::copy_in(self.whole.inner(), offset, bytes)
    }

    /// Copies the values at `offset` out, as [`MemoryRegion::read_slice`](super::MemoryRegion::read_slice).
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn read_slice<T: Plain>(&self, offset: usize, values: &mut [T]) -> Result<(), OutOfBounds> {
        self.read_into(offset, values.as_mut_bytes())
    }

    /// Copies `values` in at `offset`, as [`MemoryRegion::write_slice`](super::MemoryRegion::write_slice).
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing is copied.
    pub fn write_slice<T: Plain>(&self, offset: usize, values: &[T]) -> Result<(), OutOfBounds> {
        self.write_from(offset, values.as_bytes())
    }

    /// Loads the word at `offset`, a multiple of 8; native byte order.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], also where `offset` is not a multiple of 8.
    pub fn load(&self, offset: usize) -> Result<u64, OutOfBounds> {
        Ok(exposed::whole_word(self.whole.inner(), offset)?.load(Ordering::Relaxed))
    }

    /// Stores the word at `offset`, a multiple of 8; native byte order.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn store(&self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
        exposed::whole_word(self.whole.inner(), offset)?.store(value, Ordering::Relaxed);
        Ok(())
    }
}

impl<B, A, M> fmt::Debug for OpaqueRegion<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpaqueRegion")
            .field("len", &self.whole.len_bytes())
            .field("rights", &access::name::<A>())
            .finish_non_exhaustive()
    }
}
