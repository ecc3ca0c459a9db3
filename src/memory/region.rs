//! Memory regions: registered memory that a program owns as a whole.

use super::access::{self, Access};
use super::backing::Memory;
use super::bindable::Bindable;
use super::buffer::{Buffer, SharedBuffer};
use super::error::{DeregisterError, RegisterError, RejoinError};
use super::pages::Pages;
use super::registration::RegionInner;
use super::whole::{Remainder, Whole};
use super::{DeviceMayWrite, Exposed, MayBind, PeerCannotWrite, RemoteRegion, Unexposed};
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainInner};
use std::marker::PhantomData;
use std::{fmt, sync::Arc};

/// Registered memory with the rights `A` in the domain `B`, as a whole. `M` is the type of the memory, which comes
/// back.
///
/// Dropping it deregisters and frees the memory. If the device refuses to deregister it, the memory is leaked and never
/// freed. What the program may do with the bytes depends on `A`: see the table at [`Access`].
///
/// # Rules
///
/// The compiler enforces each of them; programs that break them are in `ui-tests/memory`.
///
/// - M1: what a peer can write is never `&[u8]`.
/// - M2: what a peer can reach is never `&mut [u8]`.
/// - M3: buffers are made of memory that the device may write and no peer reaches.
/// - M4: private memory is not granted to peers.
/// - M5: a region ends only when all its bytes are back.
/// - M6: registered memory holds types for which any bytes are a value, and which have no padding.
/// - M7: registered memory belongs to its region until it is deregistered.
/// - M8: rights are presets; none has a peer write without the device's own.
/// - M9: a buffer is the only handle of its bytes.
/// - M10: nobody writes a shared buffer.
/// - M11: bytes are viewed only as types for which they are a value.
/// - M12: keys and grants come from devices and records, never from numbers.
/// - M20: what a peer names from 0 on is not posted by address.
/// - M25: static memory is only read.
#[doc(alias = "ibv_mr")]
#[must_use = "dropping it ends the registration"]
pub struct MemoryRegion<B, A, M = Pages> {
    whole: Whole<A, M>,
    brand: Branded<B>,
}

impl<A, M> Whole<A, M> {
    pub(super) fn into_region<B>(self) -> MemoryRegion<B, A, M> {
        MemoryRegion { whole: self, brand: PhantomData }
    }
}

impl<B, A, M> MemoryRegion<B, A, M> {
    pub(super) fn inner(&self) -> &RegionInner {
        self.whole.inner()
    }
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    pub(crate) fn register(domain: &Arc<DomainInner>, memory: M) -> Result<Self, RegisterError<M>> {
        Whole::register(domain, memory).map(Whole::into_region)
    }

    /// Its length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.whole.len_bytes()
    }

    /// Ends the registration and gives the memory back.
    ///
    /// `ibv_dereg_mr(3)`. Afterwards no peer reaches the memory: a peer's request fails with a remote access error.
    ///
    /// # Errors
    ///
    /// The device refused to deregister it; the region comes back, still registered.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<M, DeregisterError<Self>> {
        self.whole.deregister().map_err(|error| error.map(Whole::into_region))
    }
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    /// Its bytes. No peer can change them while they are borrowed.
    pub fn as_bytes(&self) -> &[u8]
    where
        A: PeerCannotWrite,
    {
        self.whole.as_bytes()
    }

    /// Its bytes, to write.
    pub fn as_bytes_mut(&mut self) -> &mut [u8]
    where
        A: Unexposed,
    {
        self.whole.as_bytes_mut()
    }

    /// Makes the region read-only for good, and gives the first share of it. The memory is freed with the last share.
    pub fn share(self) -> SharedBuffer<B>
    where
        A: PeerCannotWrite,
    {
        SharedBuffer::new(self.whole.share())
    }

    /// The record that a peer needs to reach the region: address, key, length and rights. Send the peer its bytes.
    ///
    /// Peers can use the record until the region is deregistered; afterwards their requests fail.
    pub fn remote(&self) -> RemoteRegion<A>
    where
        A: Exposed,
    {
        self.inner().remote()
    }
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    /// Turns the region into one buffer over all of its bytes, which can be split further.
    ///
    /// The [`SplitRegion`] takes the whole buffer back and becomes the region again. It may be dropped at any time: the
    /// memory is freed when the last buffer is dropped.
    pub fn split(self) -> (SplitRegion<B, A, M>, Buffer<B>)
    where
        A: DeviceMayWrite + Unexposed,
    {
        let (rest, part) = self.whole.split();
        (SplitRegion::of(rest), Buffer::new(part))
    }
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    /// As [`split`](Self::split), into one part for windows.
    pub fn split_bindable(self) -> (SplitRegion<B, A, M>, Bindable<B>)
    where
        A: MayBind,
    {
        let (rest, buffer) = self.split();
        (rest, Bindable::of_region::<A>(buffer))
    }
}

impl<B, A, M> fmt::Debug for MemoryRegion<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("len", &self.whole.len_bytes())
            .field("rights", &access::name::<A>())
            .finish_non_exhaustive()
    }
}

/// The remainder of a region whose bytes are handed out as buffers.
///
/// It cannot be deregistered until [`rejoin`](Self::rejoin) has the whole buffer back.
pub struct SplitRegion<B, A, M = Pages> {
    rest: Remainder<A, M>,
    brand: Branded<B>,
}

impl<B, A, M> SplitRegion<B, A, M> {
    pub(super) fn of(rest: Remainder<A, M>) -> Self {
        Self { rest, brand: PhantomData }
    }

    pub(super) fn into_rest(self) -> Remainder<A, M> {
        self.rest
    }
}

impl<B: Brand, A: DeviceMayWrite + Unexposed, M: Memory> SplitRegion<B, A, M> {
    /// Rebuilds the region from a buffer over all of it.
    ///
    /// # Errors
    ///
    /// The buffer belongs to another region, or is not all of this one ([`Buffer::join`] puts parts together); both
    /// come back.
    pub fn rejoin(self, whole: Buffer<B>) -> Result<MemoryRegion<B, A, M>, RejoinError<Self, Buffer<B>>> {
        match self.rest.rejoin(whole.into_part()) {
            Ok(whole) => Ok(whole.into_region()),
            Err((rest, part)) => Err(RejoinError { region: Self::of(rest), buffer: Buffer::new(part) }),
        }
    }
}

impl<B, A, M> fmt::Debug for SplitRegion<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitRegion").field("len", &self.rest.len_bytes()).finish_non_exhaustive()
    }
}
