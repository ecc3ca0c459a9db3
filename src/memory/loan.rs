//! Registrations of memory that is not ours: what a scope borrows.
//!
//! The registration has one owner, the [`Loan`]. Parts and regions over lent memory only know the address and the keys:
//! whatever becomes of them, forgotten ones included, ends no registration and frees nothing.
#![allow(unsafe_code, reason = "owns the raw region of memory that it does not own")]

use super::access::Access;
use super::backing::RawMemory;
use super::part::Descriptor;
use super::region::RegionInner;
use super::{Buffer, Exposed, LocalRead, LocalWrite, MemoryRegion, OutOfBounds, Plain, RegisterFailure, SharedBuffer};
use crate::domain::{Brand, DomainInner};
use crate::error::{VerbError, note_leak};
use crate::sys;
use std::{mem, ops::Range, ptr, ptr::NonNull, sync::Arc};

/// A registration of memory that is lent.
#[must_use = "it has to be ended before the memory is its owner's again"]
pub(crate) struct Loan {
    /// # Invariants
    ///
    /// 0. Came from `reg_mr` of the domain's provider, and is registered while `Some`. There is none for no bytes.
    raw: Option<NonNull<sys::ibv_mr>>,
    /// Whether peers reach it.
    exposed: bool,
    domain: Arc<DomainInner>,
}

// SAFETY: verbs may be called from any thread; the memory is not used through this.
unsafe impl Send for Loan {}
// SAFETY: shared access does nothing.
unsafe impl Sync for Loan {}

impl Loan {
    /// Lends `memory` to be read: by the device, and as a shared buffer.
    ///
    /// # Safety
    ///
    /// The memory is borrowed until the device is done with all requests that name it, and the buffer and its clones are
    /// not used after that.
    pub(crate) unsafe fn shared<B, T: Plain>(
        domain: &Arc<DomainInner>,
        memory: &[T],
    ) -> Result<(Self, SharedBuffer<B>), RegisterFailure> {
        // SAFETY: the caller's promise; nobody writes through this pointer: the rights and the buffer only read.
        let (loan, region) = unsafe { Self::register::<LocalRead, T>(domain, ptr::from_ref(memory).cast_mut()) }?;
        Ok((loan, SharedBuffer::new(Descriptor::whole(Arc::new(region), false))))
    }

    /// Lends `memory` to be read and written: by the device, and as a buffer.
    ///
    /// # Safety
    ///
    /// As for [`shared`](Self::shared), and nobody else uses the memory meanwhile.
    pub(crate) unsafe fn unique<B, T: Plain>(
        domain: &Arc<DomainInner>,
        memory: &mut [T],
    ) -> Result<(Self, Buffer<B>), RegisterFailure> {
        // SAFETY: the caller's promise.
        let (loan, region) = unsafe { Self::register::<LocalWrite, T>(domain, ptr::from_mut(memory)) }?;
        Ok((loan, Buffer::new(Descriptor::whole(Arc::new(region), true))))
    }

    /// Lends `memory` to peers.
    ///
    /// # Safety
    ///
    /// The memory is borrowed until [`end`](Self::end) has said that it is over; nobody else uses it meanwhile; the region is
    /// not used after that, and never deregistered: it has no owner to rebuild.
    pub(crate) unsafe fn granted<B: Brand, A: Exposed>(
        domain: &Arc<DomainInner>,
        memory: &mut [u64],
    ) -> Result<(Self, MemoryRegion<B, A>), RegisterFailure> {
        if memory.is_empty() {
            return Err(RegisterFailure::Empty);
        }
        // SAFETY: the caller's promise.
        let (mut loan, region) = unsafe { Self::register::<A, u64>(domain, ptr::from_mut(memory)) }?;
        loan.exposed = true;
        Ok((loan, region.into_lent()))
    }

    /// # Safety
    ///
    /// As for the callers, of which each has its own.
    unsafe fn register<A: Access, T: Plain>(
        domain: &Arc<DomainInner>,
        memory: *mut [T],
    ) -> Result<(Self, RegionInner), RegisterFailure> {
        let memory = RawMemory::of_slice(memory, 0);
        let mut region = if memory.len_bytes == 0 {
            RegionInner::empty(memory, domain)
        } else if A::ZERO_BASED {
            // SAFETY: the caller's promise; it is not ours to free.
            unsafe { RegionInner::register_from_zero(domain, memory, |_| (), A::FLAGS) }?
        } else {
            // SAFETY: as above.
            unsafe { RegionInner::register(domain, memory, |_| (), A::FLAGS) }?
        };
        let loan = Self { raw: region.give_up(), exposed: false, domain: Arc::clone(domain) };
        Ok((loan, region))
    }

    /// Ends the registration.
    pub(crate) fn end(&mut self) -> Result<(), VerbError> {
        if let Some(raw) = self.raw {
            // SAFETY: registered (0).
            unsafe { self.domain.context.provider.dereg_mr(raw) }?;
            self.raw = None;
        }
        Ok(())
    }

    /// Whether peers may still reach the memory.
    pub(crate) fn is_exposed(&self) -> bool {
        self.exposed && self.raw.is_some()
    }

    /// Leaves the registration to the device, which would not end it.
    pub(crate) fn leak(self, error: VerbError) {
        mem::forget(Arc::clone(&self.domain));
        note_leak("the registration of borrowed memory", error);
    }
}

impl<B> SharedBuffer<B> {
    /// The bytes in `range`, as a share of their own. May be none.
    pub(crate) fn share_of(&self, range: Range<usize>) -> Result<Self, OutOfBounds> {
        let (within, len_bytes) = (self.len(), range.end.saturating_sub(range.start));
        let len_bytes = if range.start > range.end { usize::MAX } else { len_bytes };
        OutOfBounds::check(range.start as u64, len_bytes as u64, within as u64)?;
        let part = self.part();
        let addr = part.addr().wrapping_add(range.start);
        Ok(Self::new(Descriptor::part(addr, len_bytes, false, Arc::clone(part.region()))))
    }
}
