//! The handles of a registration: of a region as a whole, with the type of its owner; of the rest of a region while its
//! bytes are out as buffers; and of borrowed memory.
#![allow(unsafe_code, reason = "registers borrowed memory")]

use super::backing::{ReleasedOwner, TakenApart, sealed::Owner};
use super::buffer::{Buffer, SharedBuffer};
use super::error::{DeregisterError, RegisterError, RegisterFailure};
use super::part::{RegionRest, SharedPart, UniquePart, UniqueRegion};
use super::raw_window::LapsedPart;
use super::registration::{RegionInner, Registration, Span};
use super::{Access, DeviceMayWrite, Exposed, LocalRead, LocalWrite, MemoryRegion, PeerCannotWrite, Plain, Unexposed};
use crate::domain::{Brand, DomainInner};
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::{ptr, sync::Arc};

/// A whole region with the rights `A` over memory of an `M`.
pub(super) struct Whole<A, M> {
    region: UniqueRegion<A>,
    memory: PhantomData<fn() -> M>,
}

impl<A: Access, M: Owner> Whole<A, M> {
    /// Registers `memory`.
    pub(super) fn register(domain: &Arc<DomainInner>, memory: M) -> Result<Self, RegisterError<M>> {
        match RegionInner::register::<A, M>(domain, TakenApart::of(memory)) {
            Ok(region) => Ok(Self::of(UniqueRegion::new(region))),
            Err((parts, source)) => Err(RegisterError { memory: M::rebuild(parts), source }),
        }
    }
}

impl<A, M: Owner> Whole<A, M> {
    /// Ends the registration and gives the memory back.
    pub(super) fn deregister(mut self) -> Result<M, DeregisterError<Self>> {
        // The owner is never missing: only borrowed memory has none, and a scope hands out no such region by value.
        let no_owner = VerbError::new("ibv_dereg_mr", libc::EBUSY);
        let parts = self.region.end().and_then(|owner| owner.and_then(ReleasedOwner::into_parts).ok_or(no_owner));
        match parts {
            Ok(parts) => Ok(M::rebuild(parts)),
            Err(source) => Err(DeregisterError { region: self, source }),
        }
    }
}

impl<A, M> Whole<A, M> {
    fn of(region: UniqueRegion<A>) -> Self {
        Self { region, memory: PhantomData }
    }

    pub(super) fn inner(&self) -> &RegionInner {
        &self.region
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.region.len_bytes()
    }
}

impl<A: Access, M> Whole<A, M> {
    pub(super) fn as_bytes(&self) -> &[u8]
    where
        A: PeerCannotWrite,
    {
        self.region.as_bytes()
    }

    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8]
    where
        A: Unexposed,
    {
        self.region.as_bytes_mut()
    }

    /// All of it as a part that nobody writes.
    pub(super) fn share(self) -> SharedPart
    where
        A: PeerCannotWrite,
    {
        self.region.share()
    }

    /// Splits it into one part over all of its bytes, and the remainder that takes the part back.
    pub(super) fn split(self) -> (Remainder<A, M>, UniquePart)
    where
        A: DeviceMayWrite + Unexposed,
    {
        let (rest, part) = self.region.split();
        (Remainder { rest, memory: PhantomData }, part)
    }
}

/// A region whose bytes are handed out as parts.
pub(super) struct Remainder<A, M> {
    rest: RegionRest<A>,
    memory: PhantomData<fn() -> M>,
}

impl<A, M> Remainder<A, M> {
    pub(super) fn len_bytes(&self) -> usize {
        self.rest.len_bytes()
    }

    /// Rebuilds the region from a part over all of it.
    pub(super) fn rejoin(self, part: UniquePart) -> Result<Whole<A, M>, (Self, UniquePart)> {
        part.into_region(&self.rest).map(Whole::of).map_err(|part| (self, part))
    }

    /// Rebuilds the region from memory over all of it. The region can only be ended.
    pub(super) fn rejoin_lapsed(self, part: LapsedPart) -> Result<Whole<(), M>, (Self, LapsedPart)> {
        part.into_region(&self.rest).map(Whole::of).map_err(|part| (self, part))
    }
}

/// Borrowed memory that a scope is about to lend. `H` is the handle that the closure of the scope gets.
pub(crate) struct Lending<'env, H> {
    span: Span,
    /// Whether peers will reach the memory.
    is_exposed: bool,
    /// Makes the handle. The region has the rights of the span, and nobody else has a handle of it.
    handle: fn(RegionInner) -> H,
    memory: PhantomData<&'env mut ()>,
}

impl<'env, B> Lending<'env, SharedBuffer<B>> {
    /// `memory` as a shared buffer, to be read by the device too.
    pub(crate) fn shared<T: Plain>(memory: &'env [T]) -> Self {
        // Nobody writes through this pointer: the rights allow only reads, and so does the shared buffer.
        let memory = ptr::from_ref(memory).cast_mut();
        Self::of::<LocalRead, T>(memory, false, |region| SharedBuffer::new(SharedPart::of_read_only(region)))
    }
}

impl<'env, B> Lending<'env, Buffer<B>> {
    /// `memory` as a buffer, to be read and written by the device too.
    pub(crate) fn unique<T: Plain>(memory: &'env mut [T]) -> Self {
        Self::of::<LocalWrite, T>(ptr::from_mut(memory), false, |region| {
            Buffer::new(UniqueRegion::<LocalWrite>::new(region).split().1)
        })
    }
}

impl<'env, B: Brand, A: Exposed> Lending<'env, MemoryRegion<B, A>> {
    /// `memory` for peers. Empty memory is refused by [`start`](Self::start).
    pub(crate) fn granted(memory: &'env mut [u64]) -> Self {
        Self::of::<A, u64>(ptr::from_mut(memory), true, |region| Whole::of(UniqueRegion::new(region)).into_region())
    }
}

impl<'env, H> Lending<'env, H> {
    fn of<A: Access, T>(memory: *mut [T], is_exposed: bool, handle: fn(RegionInner) -> H) -> Self {
        Self { span: Span::of::<A, T>(memory), is_exposed, handle, memory: PhantomData }
    }

    /// Registers the memory.
    ///
    /// # Safety
    ///
    /// The memory stays borrowed until all requests that name it have ended, and until [`Loan::end`] has returned `Ok`
    /// if peers reach it. The handle and what is made of it are not used after that.
    pub(crate) unsafe fn start(self, domain: &Arc<DomainInner>) -> Result<(Loan, H), RegisterFailure> {
        let Self { span, is_exposed, handle, .. } = self;
        let mut region = if span.is_empty() && !is_exposed {
            RegionInner::of_nothing(domain, span)
        } else {
            // SAFETY: the memory stays borrowed (caller): shared if the rights only allow reads, otherwise mutably.
            unsafe { RegionInner::new(domain, span) }?
        };
        Ok((Loan { registration: region.take_registration(), is_exposed }, handle(region)))
    }
}

/// The registration of memory that a scope borrows.
///
/// It is the only owner of the registration. Buffers and regions over the memory know its address and keys only:
/// whatever becomes of them, forgotten ones included, they end no registration and free nothing.
#[must_use = "the memory is its owner's again only after the loan has ended"]
pub(crate) struct Loan {
    registration: Registration,
    /// Whether peers reach the memory.
    is_exposed: bool,
}

impl Loan {
    /// Ends the registration.
    pub(crate) fn end(&mut self) -> Result<(), VerbError> {
        self.registration.end()
    }

    /// Whether peers may still reach the memory.
    pub(crate) fn is_exposed(&self) -> bool {
        self.is_exposed && self.registration.is_registered()
    }

    /// Leaks the registration, which the device did not end.
    pub(crate) fn leak(self, error: VerbError) {
        self.registration.leak("the registration of borrowed memory", error);
    }
}
