//! Memory regions: registered memory that a program owns as a whole.

use super::access::{self, Access};
use super::backing::Memory;
use super::buffer::{Buffer, SharedBuffer};
use super::huge::NoHugePages;
use super::locked::LockedMemoryLimit;
use super::pages::{NoPages, Pages};
use super::part::UniquePart;
use super::registration::RegionInner;
use super::whole::{Remainder, Whole};
use super::window::Lapsed;
use super::{DeviceMayWrite, Exposed, PeerCannotWrite, RemoteRegion, Unexposed};
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainInner};
use crate::error::VerbError;
use crate::sys;
use std::marker::PhantomData;
use std::{error, fmt, sync::Arc};

/// Why memory was not registered. The memory comes back.
pub struct RegisterError<M> {
    /// The memory, unchanged.
    pub memory: M,
    /// The reason.
    pub source: RegisterFailure,
}

impl<M> RegisterError<M> {
    /// The error without the memory, which is dropped: it can leave a scoped domain.
    pub fn into_cause(self) -> RegisterFailure {
        self.source
    }
}

impl<M> fmt::Debug for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterError").field("source", &self.source).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl<M> error::Error for RegisterError<M> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        error::Error::source(&self.source)
    }
}

impl<M> From<RegisterError<M>> for RegisterFailure {
    fn from(error: RegisterError<M>) -> Self {
        error.source
    }
}

/// The reason why memory was not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterFailure {
    /// There is nothing to register: no bytes.
    #[error("a memory region has at least one byte")]
    Empty,
    /// A buffer of a registration of a buffer, and so on.
    #[error("a buffer is registered at most {most} times, one around the other: end some of the registrations")]
    TooDeep {
        /// How often.
        most: u8,
    },
    /// Peers reach memory in words, so it must be made of words.
    #[error(
        "memory that peers reach is 8-byte aligned and a multiple of 8 bytes long; \
         this is {len_bytes} bytes at {address:#x} (take `Pages` or a `Box<[u64]>`)"
    )]
    NotInWords {
        /// The address of its first byte.
        address: usize,
        /// Its length.
        len_bytes: usize,
    },
    /// Memory that peers name from 0 on starts with a page.
    #[error(
        "memory registered as `ZeroBased` starts on a page of {page_bytes} bytes; this is at {address:#x} (take `Pages`)"
    )]
    NotInPages {
        /// The address of its first byte.
        address: usize,
        /// The length of a page.
        page_bytes: usize,
    },
    /// The process may not lock so much memory.
    #[error(transparent)]
    LockedMemoryLimit(LockedMemoryLimit),
    /// The device has no such thing.
    #[error("the device has no {feature}")]
    Unsupported {
        /// What was asked for.
        feature: &'static str,
        /// What the device answered.
        source: VerbError,
    },
    /// There is not so much memory.
    #[error(transparent)]
    NoPages(#[from] NoPages),
    /// There are not so many huge pages.
    #[error(transparent)]
    NoHugePages(#[from] NoHugePages),
    /// The device answered with an error.
    #[error(transparent)]
    Verb(VerbError),
}

impl RegisterFailure {
    /// What `source` means for a registration of `needed_bytes`. `has_paging` asks the device whether it has on-demand paging.
    pub(super) fn of(
        source: VerbError,
        needed_bytes: usize,
        rights: sys::ibv_access_flags,
        has_paging: impl Fn() -> bool,
    ) -> Self {
        let paging = rights.0 & sys::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 != 0;
        match (source.errno(), source.verb()) {
            (libc::ENOMEM, _) => {
                LockedMemoryLimit::of(source, needed_bytes).map_or(Self::Verb(source), Self::LockedMemoryLimit)
            }
            (libc::EOPNOTSUPP, "ibv_reg_dmabuf_mr") => {
                Self::Unsupported { feature: "registration of a dma-buf", source }
            }
            // Some kernels call a flag invalid that they do not know, and so says a device without it.
            (libc::EOPNOTSUPP | libc::EINVAL, _) if paging && !has_paging() => {
                Self::Unsupported { feature: "on-demand paging", source }
            }
            _ => Self::Verb(source),
        }
    }
}

/// Registered memory with the rights `A` in the domain `B`, as a whole. `M` is the owner that comes back.
///
/// Dropping it deregisters and frees; what could not be deregistered is leaked, never freed. What the program may do
/// with its bytes depends on `A`: see the table at [`Access`].
///
/// # Rules
///
/// Each is kept by the compiler; programs that break them are in `ui-tests/memory`.
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

impl<B, A, M> MemoryRegion<B, A, M> {
    pub(super) fn of(whole: Whole<A, M>) -> Self {
        Self { whole, brand: PhantomData }
    }

    pub(super) fn inner(&self) -> &RegionInner {
        self.whole.inner()
    }
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    pub(crate) fn register(domain: &Arc<DomainInner>, memory: M) -> Result<Self, RegisterError<M>> {
        Whole::register(domain, memory).map(Self::of)
    }

    /// Its length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.whole.len_bytes()
    }

    /// Ends the registration and gives the memory back.
    ///
    /// `ibv_dereg_mr(3)`. Afterwards no peer reaches the memory: its requests fail with a remote access error.
    ///
    /// # Errors
    ///
    /// The device would not let go of it; the region comes back, still registered.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<M, DeregisterError<Self>> {
        self.whole.deregister().map_err(|error| error.map(Self::of))
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

    /// Makes it read-only for good, and gives the first share. The memory is freed with the last of them.
    pub fn share(self) -> SharedBuffer<B>
    where
        A: PeerCannotWrite,
    {
        SharedBuffer::new(self.whole.into_shared())
    }

    /// What a peer needs to reach it: address, key, length and rights. Send it the bytes of this record.
    ///
    /// Peers can use it until the region is deregistered; afterwards their requests fail.
    pub fn remote(&self) -> RemoteRegion<A>
    where
        A: Exposed,
    {
        self.inner().remote()
    }
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    /// Turns the region into one buffer over all of it, which can be split further.
    ///
    /// The other part takes the whole buffer back and becomes the region again. It may be dropped at any time: the memory
    /// is freed when the last buffer is gone.
    pub fn split(self) -> (SplitRegion<B, A, M>, Buffer<B>)
    where
        A: DeviceMayWrite + Unexposed,
    {
        let (rest, part) = self.whole.split();
        (SplitRegion { rest, brand: PhantomData }, Buffer::new(part))
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

/// A region that the device would not let go of: it comes back, still registered.
#[derive(thiserror::Error)]
#[error("the region is still registered")]
pub struct DeregisterError<R> {
    /// The region.
    pub region: R,
    /// What the device answered.
    pub source: VerbError,
}

impl<R> DeregisterError<R> {
    pub(super) fn map<S>(self, f: impl FnOnce(R) -> S) -> DeregisterError<S> {
        DeregisterError { region: f(self.region), source: self.source }
    }

    /// The error without the region, which is dropped: it can leave a scoped domain.
    pub fn into_cause(self) -> VerbError {
        self.source
    }
}

impl<R> fmt::Debug for DeregisterError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeregisterError").field("source", &self.source).finish_non_exhaustive()
    }
}

impl<R> From<DeregisterError<R>> for VerbError {
    fn from(error: DeregisterError<R>) -> Self {
        error.source
    }
}

/// What is left of a region whose bytes are out as buffers.
///
/// It cannot be deregistered: [`rejoin`](Self::rejoin) needs the whole buffer back first.
pub struct SplitRegion<B, A, M = Pages> {
    rest: Remainder<A, M>,
    brand: Branded<B>,
}

impl<B, A, M> SplitRegion<B, A, M> {
    fn rejoin_part(self, part: UniquePart) -> Result<MemoryRegion<B, A, M>, (Self, UniquePart)> {
        match self.rest.rejoin(part) {
            Ok(whole) => Ok(MemoryRegion::of(whole)),
            Err((rest, part)) => Err((Self { rest, brand: PhantomData }, part)),
        }
    }
}

impl<B: Brand, A: DeviceMayWrite + Unexposed, M: Memory> SplitRegion<B, A, M> {
    /// Makes the region whole again from a buffer over all of it.
    ///
    /// # Errors
    ///
    /// The buffer is of another region or a part only ([`Buffer::join`] puts parts together); both come back.
    pub fn rejoin(self, whole: Buffer<B>) -> Result<MemoryRegion<B, A, M>, RejoinError<Self, Buffer<B>>> {
        let error = |(region, part)| RejoinError { region, buffer: Buffer::of(part) };
        self.rejoin_part(whole.into_unique()).map_err(error)
    }
}

impl<B: Brand, A: DeviceMayWrite + Unexposed, M: Memory> SplitRegion<B, A, M> {
    /// The region again from what a window over all of it left, to be deregistered and nothing else.
    ///
    /// # Errors
    ///
    /// That is of another region or a part only; both come back.
    pub fn rejoin_lapsed(self, whole: Lapsed<B>) -> Result<LapsedRegion<B, A, M>, RejoinError<Self, Lapsed<B>>> {
        let (part, barrier) = whole.into_unique();
        match self.rejoin_part(part) {
            Ok(region) => Ok(LapsedRegion(region)),
            Err((region, part)) => Err(RejoinError { region, buffer: Lapsed::of_part(part, barrier) }),
        }
    }
}

/// A region over which a window was bound, on a device where the window's end says nothing of accesses that had begun.
///
/// Only the end of the registration does: [`deregister`](Self::deregister). Until then nothing of it is borrowed.
pub struct LapsedRegion<B, A, M = Pages>(MemoryRegion<B, A, M>);

impl<B: Brand, A: Access, M: Memory> LapsedRegion<B, A, M> {
    /// Ends the registration and gives the memory back.
    ///
    /// `ibv_dereg_mr(3)`.
    ///
    /// # Errors
    ///
    /// The device would not let go of it; the region comes back, still registered.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<M, DeregisterError<Self>> {
        self.0.deregister().map_err(|error| error.map(Self))
    }
}

impl<B, A, M> fmt::Debug for LapsedRegion<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LapsedRegion").field(&self.0).finish()
    }
}

impl<B, A, M> fmt::Debug for SplitRegion<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitRegion").field("len", &self.rest.len_bytes()).finish_non_exhaustive()
    }
}

/// A buffer that is not the whole of the region. Both come back.
#[derive(thiserror::Error)]
#[error("the buffer is not all of this region: join its parts first")]
pub struct RejoinError<R, P> {
    /// What is left of the region.
    pub region: R,
    /// The buffer.
    pub buffer: P,
}

impl<R, P> RejoinError<R, P> {
    /// The error without region and buffer, which are dropped: it can leave a scoped domain.
    pub fn into_cause(self) -> RejoinError<(), ()> {
        RejoinError { region: (), buffer: () }
    }
}

impl<R, P> fmt::Debug for RejoinError<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejoinError").finish_non_exhaustive()
    }
}
