//! A region as a whole, with the type of its owner; and what is left of it while its bytes are out as buffers.
#![allow(unsafe_code, reason = "slices of whole regions; gives owners back")]

use super::backing::{TakenApart, sealed::Owner};
use super::part::{Descriptor, Part, UniquePart};
use super::registration::{Exported, RegionInner};
use super::{Access, DeregisterError, DeviceMayWrite, Memory, OpaqueMemory, PeerCannotWrite, RegisterError, Unexposed};
use crate::domain::DomainInner;
use crate::error::VerbError;
use crate::seal::Key;
use std::marker::PhantomData;
use std::{slice, sync::Arc};

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
    /// Registers memory of this process.
    pub(super) fn register(domain: &Arc<DomainInner>, memory: M) -> Result<Self, RegisterError<M>>
    where
        M: Memory,
    {
        Self::register_as(domain, memory, None)
    }

    /// Registers memory that others write too.
    pub(super) fn register_opaque(domain: &Arc<DomainInner>, memory: M) -> Result<Self, RegisterError<M>>
    where
        M: OpaqueMemory,
    {
        let exported = memory.exported(Key(()));
        Self::register_as(domain, memory, exported)
    }

    /// `exported` is what `memory` says of itself.
    fn register_as(domain: &Arc<DomainInner>, memory: M, exported: Option<Exported>) -> Result<Self, RegisterError<M>> {
        // SAFETY: `memory` owns the descriptor that it exports, and keeps it while it is taken apart.
        match unsafe { RegionInner::register::<A, M>(domain, TakenApart::of(memory), exported) } {
            Ok(inner) => Ok(Self { inner: Arc::new(inner), types: PhantomData }),
            Err((parts, source)) => Err(RegisterError { memory: parts.rebuild(), source }),
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
            Ok(owner) => Ok(unsafe { owner.into_parts() }.rebuild()),
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
