//! How a domain registers memory.

use super::{Access, Buffer, LocalWrite, Memory, MemoryRegion, Pages, RegisterError, RegisterFailure};
use crate::domain::{Brand, ProtectionDomain};

impl<B: Brand> ProtectionDomain<B> {
    /// Registers memory with the rights `A`, and owns it until it is deregistered.
    ///
    /// `ibv_reg_mr(3)`. Pins the pages. `memory` is a `Box<[T]>`, a `Vec<T>` (its length, not its capacity), a
    /// `&'static mut [T]` or [`Pages`], where any bytes are a `T` and a `T` has no padding; or a
    /// [`Foreign`](crate::memory::Foreign) owner of another kind. Rights that let a peer in ask for memory that is
    /// 8-byte aligned and a multiple of 8 bytes long, as [`Pages`] and `Box<[u64]>` are. Memory that is only borrowed
    /// is lent in a [`scope`](crate::scope). Memory that others write, too, goes to
    /// [`register_opaque`](Self::register_opaque).
    ///
    /// # Errors
    ///
    /// [`RegisterError`] gives the memory back, with the reason: empty, not aligned for the rights, or what the device
    /// answered ([`LockedMemoryLimit`](crate::error::LockedMemoryLimit) if the process may not lock that much).
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::{Context, LocalWrite, RemoteRead};
    /// interlock::domain! { struct Docs; }
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let private = domain.register::<LocalWrite, _>(vec![0_u8; 4096])?;
    /// let readable = domain.register::<RemoteRead, _>(vec![7_u64; 512])?;
    /// let bytes: Vec<u8> = private.deregister()?;
    /// assert_eq!(bytes.len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<A: Access, M: Memory>(&self, memory: M) -> Result<MemoryRegion<B, A, M>, RegisterError<M>> {
        MemoryRegion::register(&self.inner, memory)
    }

    /// A buffer of zeroed memory of its own, private to this program and its device. All of it counts as filled.
    ///
    /// Each call takes a registration and at least a page: for many buffers use [`buffers`](Self::buffers).
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub fn buffer(&self, len_bytes: usize) -> Result<Buffer<B>, RegisterFailure> {
        Ok(self.register::<LocalWrite, _>(Pages::new(len_bytes)?)?.split().1)
    }

    /// `count` buffers of `len_bytes` each, zeroed and filled, out of one registration.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub fn buffers(&self, count: usize, len_bytes: usize) -> Result<Vec<Buffer<B>>, RegisterFailure> {
        // If the product overflows, `buffer` fails: no machine has that much memory.
        Ok(self.buffer(len_bytes.saturating_mul(count))?.into_chunks(len_bytes))
    }
}
