//! Memory regions: registered memory that a program owns as a whole.
//!
//! ASSUMPTION: the machine's DMA is coherent with its caches, as on x86-64 and on servers of 64-bit Arm.

use super::access::{self, Access};
use super::bindable::Bindable;
use super::buffer::{Buffer, SharedBuffer};
use super::error::{DeregisterError, RegisterError, RegisterFailure, RejoinError};
use super::owners::Memory;
use super::pages::Pages;
use super::part::{RegionRest, SharedPart, UniquePart, UniqueRegion};
use super::raw_window::LapsedPart;
use super::registration::sealed::Owner;
use super::registration::{RegionInner, ReleasedOwner, TakenApart};
use super::{DeviceMayWrite, Exposed, LocalWrite, MayBind, PeerCannotWrite, RemoteRegion, Unexposed};
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainInner, ProtectionDomain};
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::{fmt, sync::Arc};

/// How a domain registers memory.
impl<B: Brand> ProtectionDomain<B> {
    /// Registers memory with the rights `A`, and owns it until it is deregistered.
    ///
    /// `ibv_reg_mr(3)`. Pins the pages. `memory` is a `Box<[T]>`, a `Vec<T>` (its length, not its capacity), a
    /// `&'static mut [T]` or [`Pages`], where any bytes are a `T` and a `T` has no padding; or a
    /// [`Foreign`](crate::memory::Foreign) owner of another kind. If the rights let a peer in, the memory must be
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
    /// The device refused to deregister it; the region comes back, still registered. On soft iWARP, memory that peers
    /// may read never comes back (`EOPNOTSUPP`, see
    /// [`readable_memory_comes_back`](crate::device::Promises::readable_memory_comes_back)).
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

    /// The record that a peer needs to reach the region: address, key, length and rights. Send the peer the record's
    /// bytes.
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
    /// As [`split`](Self::split), but the one part is for windows.
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

/// A whole region with the rights `A` over memory of an `M`, without its brand: the regions of other modules, such as
/// leases, are made of it too.
pub(super) struct Whole<A, M> {
    region: UniqueRegion<A>,
    /// `fn(M) -> M`, so that this is invariant in `M`: the owner is rebuilt only as exactly the type that was
    /// registered, and a subtype is another type.
    memory: PhantomData<fn(M) -> M>,
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
        // `no_owner` is never returned: `register` gave the region an owner of type `M`. Only static and borrowed
        // memory has no owner. Nobody makes a `Whole` of static memory, and a scope does not give out the `Whole` of
        // borrowed memory.
        let no_owner = VerbError::new("ibv_dereg_mr", libc::EBUSY);
        let parts = self.region.end().and_then(|owner| owner.and_then(ReleasedOwner::into_parts).ok_or(no_owner));
        match parts {
            Ok(parts) => Ok(M::rebuild(parts)),
            Err(source) => Err(DeregisterError { region: self, source }),
        }
    }
}

impl<A, M> Whole<A, M> {
    pub(super) fn of(region: UniqueRegion<A>) -> Self {
        Self { region, memory: PhantomData }
    }

    pub(super) fn inner(&self) -> &RegionInner {
        &self.region
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.region.len_bytes()
    }
}

/// For memory that is mapped, and that no other process writes.
impl<A: Access, M: Memory> Whole<A, M> {
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
    memory: PhantomData<fn(M) -> M>,
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
