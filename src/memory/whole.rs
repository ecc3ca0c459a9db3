//! The handles of a registration: of a region as a whole, with the type of its owner; of the rest of a region while its
//! bytes are out as buffers; and of borrowed memory.
#![allow(unsafe_code, reason = "slices of whole regions; gives owners back; registers borrowed memory")]

use super::backing::{Memory, TakenApart, sealed::Owner};
use super::buffer::{Buffer, SharedBuffer};
use super::error::{DeregisterError, RegisterError, RegisterFailure};
use super::part::{Descriptor, Part, UniquePart};
use super::registration::{RegionInner, Registration};
use super::{Access, DeviceMayWrite, Exposed, LocalRead, LocalWrite, MemoryRegion, PeerCannotWrite, Plain, Unexposed};
use crate::domain::{Brand, DomainInner};
use crate::seal::Key;
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::{ptr, slice, sync::Arc};

/// A whole region with the rights `A` over memory of an `M`.
pub(super) struct Whole<A, M> {
    /// # Invariants
    ///
    /// 0. The only handle: no buffer of the region is left, so no request names it.
    /// 1. Registered with the rights `A`. Its owner, if it has one, was made of an `M`.
    inner: Arc<RegionInner>,
    types: PhantomData<fn() -> (A, M)>,
}

impl<A: Access, M: Owner> Whole<A, M> {
    /// Registers `memory`.
    pub(super) fn register(domain: &Arc<DomainInner>, memory: M) -> Result<Self, RegisterError<M>> {
        let exported = memory.exported(Key(()));
        // SAFETY: `memory` owns the descriptor that it exports, and keeps it while it is taken apart.
        match unsafe { RegionInner::register::<A, M>(domain, TakenApart::of(memory), exported) } {
            Ok(inner) => Ok(Self { inner: Arc::new(inner), types: PhantomData }),
            Err((parts, source)) => Err(RegisterError { memory: M::rebuild(parts), source }),
        }
    }

    /// Ends the registration and gives the memory back.
    pub(super) fn deregister(mut self) -> Result<M, DeregisterError<Self>> {
        let busy = VerbError::new("ibv_dereg_mr", libc::EBUSY);
        let ended = match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner.end(),
            // Cannot be: no buffer is left (0).
            None => Err(busy),
        };
        match ended.and_then(|owner| owner.ok_or(busy)) {
            // SAFETY: made of an `M` (1); not registered any more, and no buffer is left (0).
            Ok(owner) => Ok(M::rebuild(unsafe { owner.into_parts() })),
            // Also for borrowed memory, which has no owner to give back; a scope does not let it come to this.
            Err(source) => Err(DeregisterError { region: self, source }),
        }
    }
}

impl<A, M> Whole<A, M> {
    /// A region with the rights `A` over borrowed memory. Nobody else has a handle of it.
    pub(super) fn of_borrowed(inner: Arc<RegionInner>) -> Self {
        Self { inner, types: PhantomData }
    }

    pub(super) fn inner(&self) -> &RegionInner {
        &self.inner
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.inner.len_bytes()
    }
}

impl<A: Access, M: Memory> Whole<A, M> {
    pub(super) fn as_bytes(&self) -> &[u8]
    where
        A: PeerCannotWrite,
    {
        // SAFETY: initialised memory of ours. Nobody writes it while it is borrowed: no peer may (1), and no request
        // names it (0), so neither does the device.
        unsafe { slice::from_raw_parts(self.inner.address().as_ptr(), self.inner.len_bytes()) }
    }

    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8]
    where
        A: Unexposed,
    {
        // SAFETY: initialised memory, ours alone (0). Nobody reaches it while it is borrowed: no peer may (1), and no
        // request names it (0), so neither does the device.
        unsafe { slice::from_raw_parts_mut(self.inner.address().as_ptr(), self.inner.len_bytes()) }
    }

    /// All of it as a part that nobody writes.
    pub(super) fn into_shared(self) -> Part
    where
        A: PeerCannotWrite,
    {
        Descriptor::whole(self.inner, false)
    }

    /// All of it as one part, and what takes that part back.
    pub(super) fn split(self) -> (Remainder<A, M>, Part)
    where
        A: DeviceMayWrite + Unexposed,
    {
        let part = Descriptor::whole(Arc::clone(&self.inner), true);
        (Remainder { inner: self.inner, types: PhantomData }, part)
    }
}

/// A region whose bytes are out as parts.
pub(super) struct Remainder<A, M> {
    /// # Invariants
    ///
    /// 0. As of [`Whole`] (1); and the parts that are out do not overlap.
    inner: Arc<RegionInner>,
    types: PhantomData<fn() -> (A, M)>,
}

impl<A, M> Remainder<A, M> {
    pub(super) fn len_bytes(&self) -> usize {
        self.inner.len_bytes()
    }

    /// The region as a whole again, from a part over all of it.
    pub(super) fn rejoin(self, part: UniquePart) -> Result<Whole<A, M>, (Self, UniquePart)> {
        if !Arc::ptr_eq(part.region(), &self.inner) || part.capacity() != self.inner.len_bytes() {
            return Err((self, part));
        }
        // This part covers every byte and parts do not overlap, so it was the only one.
        drop(part);
        Ok(Whole { inner: self.inner, types: PhantomData })
    }
}

/// The registration of memory that a scope borrows.
///
/// It is the only owner of the registration. Buffers and regions over the memory know its address and keys only:
/// whatever becomes of them, forgotten ones included, they end no registration and free nothing.
#[must_use = "the memory is its owner's again only after the loan has ended"]
pub(crate) struct Loan {
    registration: Registration,
    /// Whether peers reach it.
    exposed: bool,
}

impl Loan {
    /// Lends `memory` to be read, by the device and as a shared buffer.
    ///
    /// # Safety
    ///
    /// The memory stays borrowed until the device is done with all requests that name it. The buffer and its clones are
    /// not used after that.
    pub(crate) unsafe fn shared<B, T: Plain>(
        domain: &Arc<DomainInner>,
        memory: &[T],
    ) -> Result<(Self, SharedBuffer<B>), RegisterFailure> {
        // SAFETY: the caller's promise. Nobody writes through this pointer: the rights and the buffer only read.
        let lent = unsafe { RegionInner::lend::<LocalRead, T>(domain, ptr::from_ref(memory).cast_mut()) };
        let (registration, region) = lent?;
        Ok((Self { registration, exposed: false }, SharedBuffer::new(Descriptor::whole(region, false))))
    }

    /// Lends `memory` to be read and written, by the device and as a buffer.
    ///
    /// # Safety
    ///
    /// As for [`shared`](Self::shared), and nobody else uses the memory meanwhile.
    pub(crate) unsafe fn unique<B, T: Plain>(
        domain: &Arc<DomainInner>,
        memory: &mut [T],
    ) -> Result<(Self, Buffer<B>), RegisterFailure> {
        // SAFETY: the caller's promise.
        let (registration, region) = unsafe { RegionInner::lend::<LocalWrite, T>(domain, ptr::from_mut(memory)) }?;
        Ok((Self { registration, exposed: false }, Buffer::new(Descriptor::whole(region, true))))
    }

    /// Lends `memory` to peers.
    ///
    /// # Safety
    ///
    /// The memory stays borrowed until [`end`](Self::end) has returned `Ok`; nobody else uses it meanwhile; and the
    /// region is not used after that.
    pub(crate) unsafe fn granted<B: Brand, A: Exposed>(
        domain: &Arc<DomainInner>,
        memory: &mut [u64],
    ) -> Result<(Self, MemoryRegion<B, A>), RegisterFailure> {
        if memory.is_empty() {
            return Err(RegisterFailure::Empty);
        }
        // SAFETY: the caller's promise.
        let (registration, region) = unsafe { RegionInner::lend::<A, u64>(domain, ptr::from_mut(memory)) }?;
        Ok((Self { registration, exposed: true }, Whole::of_borrowed(region).into_region()))
    }

    /// Ends the registration.
    pub(crate) fn end(&mut self) -> Result<(), VerbError> {
        self.registration.end()
    }

    /// Whether peers may still reach the memory.
    pub(crate) fn is_exposed(&self) -> bool {
        self.exposed && self.registration.is_there()
    }

    /// Leaves the registration, which the device would not end, to the device.
    pub(crate) fn leak(self, error: VerbError) {
        self.registration.leak("the registration of borrowed memory", error);
    }
}
