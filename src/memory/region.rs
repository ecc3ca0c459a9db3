//! Memory regions: registered memory that a program owns as a whole.
#![allow(unsafe_code, reason = "owns the raw region and the memory behind it")]

use super::access::{self, Access};
use super::backing::{Memory, NoPages, RawMemory};
use super::buffer::{Buffer, SharedBuffer};
use super::huge::NoHugePages;
use super::locked::{LockedMemoryLimit, page_bytes};
use super::part::Descriptor;
use super::{DeviceMayWrite, Exposed, Lapsed, Pages, PeerCannotWrite, RemoteRegion, Unexposed, options};
use crate::device::OnDemandPaging;
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainId, DomainInner};
use crate::error::{VerbError, note_leak};
use crate::sys;
use crate::types::{Lkey, Rkey};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{error, fmt, mem, ptr, ptr::NonNull, slice, sync::Arc};

/// A registration and the memory behind it. Reference-counted: buffers of a region keep it.
pub(crate) struct RegionInner {
    /// # Invariants
    ///
    /// 0. Came from `reg_mr` of the domain's provider, over all of `memory`, and is registered while `Some`.
    raw: Option<NonNull<sys::ibv_mr>>,
    /// 1. Ours alone; freed by `free` only once (0) has ended: until then the device may write it.
    memory: RawMemory,
    /// 2. Rebuilds the owner of `memory` and drops it.
    free: unsafe fn(RawMemory),
    lkey: Lkey,
    rkey: Rkey,
    rights: sys::ibv_access_flags,
    domain: Arc<DomainInner>,
}

// SAFETY: the memory is plain bytes that are ours alone (1); verbs may be called from any thread.
unsafe impl Send for RegionInner {}
// SAFETY: shared access gives out an address only; what may be done there is up to the types that own its parts.
unsafe impl Sync for RegionInner {}

/// So many registrations of one buffer there may be, one around the other: each is freed within the drop of the one around it.
const MOST_NESTED: u8 = 32;

impl RegionInner {
    pub(super) fn depth(&self) -> u8 {
        self.memory.depth()
    }

    /// Registers `memory`. Rights that let a peer in ask for whole words.
    ///
    /// # Safety
    ///
    /// The memory is the caller's alone. It is freed, if not by `free`, only once the registration has ended; `free` is
    /// called once then, on any thread.
    pub(super) unsafe fn register(
        domain: &Arc<DomainInner>,
        memory: RawMemory,
        free: unsafe fn(RawMemory),
        rights: sys::ibv_access_flags,
    ) -> Result<Self, RegisterFailure> {
        // SAFETY: the domain is alive; the memory stays (caller).
        let verb = || unsafe { domain.context.provider.reg_mr(domain.raw, memory.addr, memory.len_bytes, rights) };
        // SAFETY: the caller's promise.
        unsafe { Self::register_by(domain, memory, free, rights, verb) }
    }

    /// As [`register`](Self::register); the keys name the first byte by 0.
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn register_from_zero(
        domain: &Arc<DomainInner>,
        memory: RawMemory,
        free: unsafe fn(RawMemory),
        rights: sys::ibv_access_flags,
    ) -> Result<Self, RegisterFailure> {
        let (address, page_bytes, provider) = (memory.addr.addr(), page_bytes(), domain.context.provider);
        if memory.len_bytes != 0 && !address.is_multiple_of(page_bytes) {
            return Err(RegisterFailure::NotInPages { address, page_bytes });
        }
        // SAFETY: the domain is alive; the memory stays (caller).
        let verb = || unsafe { provider.reg_mr_iova(domain.raw, memory.addr, memory.len_bytes, 0, rights) };
        // SAFETY: the caller's promise.
        unsafe { Self::register_by(domain, memory, free, rights, verb) }
    }

    /// As [`register`](Self::register), by another verb.
    ///
    /// # Safety
    ///
    /// As there; and `verb` calls the provider of `domain` to register all of `memory`.
    pub(super) unsafe fn register_by(
        domain: &Arc<DomainInner>,
        memory: RawMemory,
        free: unsafe fn(RawMemory),
        rights: sys::ibv_access_flags,
        verb: impl FnOnce() -> Result<NonNull<sys::ibv_mr>, VerbError>,
    ) -> Result<Self, RegisterFailure> {
        if memory.depth() > MOST_NESTED {
            return Err(RegisterFailure::TooDeep { most: MOST_NESTED });
        }
        let private = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | options::FLAGS;
        let exposed = rights.0 & !private != 0;
        let (address, len_bytes) = (memory.addr.addr(), memory.len_bytes);
        if len_bytes == 0 {
            return Err(RegisterFailure::Empty);
        }
        if exposed && (address % 8 != 0 || len_bytes % 8 != 0) {
            return Err(RegisterFailure::NotInWords { address, len_bytes });
        }
        // SAFETY: open as long as the domain is there.
        let device = || unsafe { domain.context.provider.query_device_ex(domain.context.raw) };
        let has_paging = || device().is_ok_and(|device| OnDemandPaging(device.odp_caps).is_there());
        let raw = verb().map_err(|error| RegisterFailure::of(error, len_bytes, rights, has_paging))?;
        // SAFETY: registered just now, so the struct is there.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        let (lkey, rkey, domain) = (Lkey(lkey), Rkey(rkey), Arc::clone(domain));
        Ok(Self { raw: Some(raw), memory, free, lkey, rkey, rights, domain })
    }

    /// No bytes, not registered.
    pub(super) fn empty(memory: RawMemory, domain: &Arc<DomainInner>) -> Self {
        let (lkey, rkey, rights, domain) = (Lkey(0), Rkey(0), sys::ibv_access_flags(0), Arc::clone(domain));
        Self { raw: None, memory, free: |_| (), lkey, rkey, rights, domain }
    }

    /// Gives the registration up, to be ended by another: dropping this then neither ends it nor frees anything.
    pub(super) fn give_up(&mut self) -> Option<NonNull<sys::ibv_mr>> {
        self.free = |_| ();
        self.raw.take()
    }

    /// A region over lent memory. It must not be deregistered: it has no owner to rebuild.
    pub(super) fn into_lent<B, A>(self) -> MemoryRegion<B, A> {
        MemoryRegion { inner: Arc::new(self), brand: PhantomData, types: PhantomData }
    }

    pub(crate) fn addr(&self) -> *mut u8 {
        self.memory.addr
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.memory.len_bytes
    }

    pub(crate) fn lkey(&self) -> Lkey {
        self.lkey
    }

    #[inline(always)]
    pub(super) fn domain(&self) -> DomainId {
        self.domain.id()
    }

    /// The registration, as long as it is there: for requests that name the region and not only its keys.
    pub(crate) fn raw(&self) -> *mut sys::ibv_mr {
        self.raw.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Whether windows may be bound to it: whether its rights are [`MayBind`](super::MayBind).
    pub(super) fn may_bind(&self) -> bool {
        let (needed, forbidden) = (options::MW_BIND, options::RELAXED_ORDERING);
        self.rights.0 & (needed | forbidden) == needed
    }

    /// What a peer of a region with the rights `A` needs.
    pub(super) fn remote<A: Exposed>(&self) -> RemoteRegion<A> {
        let base = if A::ZERO_BASED { 0 } else { self.addr().addr() as u64 };
        RemoteRegion::of(base, self.len_bytes() as u64, self.rkey)
    }

    fn deregister(&mut self) -> Result<(), VerbError> {
        if let Some(raw) = self.raw {
            // SAFETY: registered (0).
            unsafe { self.domain.context.provider.dereg_mr(raw) }?;
            self.raw = None;
        }
        Ok(())
    }

    /// Ends the registration; the memory is the caller's.
    pub(super) fn end(&mut self) -> Result<RawMemory, VerbError> {
        self.deregister()?;
        self.free = |_| ();
        Ok(self.memory)
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        match self.deregister() {
            Ok(()) => {
                // The owner may be of the program's own; its panic has been reported, and must not unwind from a drop.
                // SAFETY: not registered any more, so the device is done with it (1, 2).
                let free = || unsafe { (self.free)(self.memory) };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(free)) {
                    mem::forget(panic);
                }
            }
            Err(error) => {
                mem::forget(Arc::clone(&self.domain));
                note_leak("a memory region", error);
            }
        }
    }
}

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
    fn of(
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
    /// # Invariants
    ///
    /// 0. The only reference: no buffer of the region is left.
    inner: Arc<RegionInner>,
    brand: Branded<B>,
    types: PhantomData<fn() -> (A, M)>,
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    pub(crate) fn register(domain: &Arc<DomainInner>, memory: M) -> Result<Self, RegisterError<M>> {
        let raw_memory = memory.into_raw(crate::seal::KEY);
        // SAFETY: `memory` came from `M::into_raw`; called once, when nobody uses it any more.
        let free: unsafe fn(RawMemory) = |raw| drop(unsafe { M::from_raw(raw) });
        let registered = if A::ZERO_BASED {
            // SAFETY: taken apart just now, so ours alone, and freed by `free` only.
            unsafe { RegionInner::register_from_zero(domain, raw_memory, free, A::FLAGS) }
        } else {
            // SAFETY: as above.
            unsafe { RegionInner::register(domain, raw_memory, free, A::FLAGS) }
        };
        match registered {
            Ok(inner) => Ok(Self { inner: Arc::new(inner), brand: PhantomData, types: PhantomData }),
            // SAFETY: taken apart above, and no device knows it.
            Err(source) => Err(RegisterError { memory: unsafe { M::from_raw(raw_memory) }, source }),
        }
    }

    /// Its length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.inner.len_bytes()
    }

    /// Ends the registration and gives the memory back.
    ///
    /// `ibv_dereg_mr(3)`. Afterwards no peer reaches the memory: its requests fail with a remote access error.
    ///
    /// # Errors
    ///
    /// The device would not let go of it; the region comes back, still registered.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(mut self) -> Result<M, DeregisterError<Self>> {
        let ended = match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner.end(),
            // Cannot be: no buffer is left (0).
            None => Err(VerbError::new("ibv_dereg_mr", libc::EBUSY)),
        };
        match ended {
            // SAFETY: came from `M::into_raw`; not registered any more, and no buffer is left (0).
            Ok(memory) => Ok(unsafe { M::from_raw(memory) }),
            Err(source) => Err(DeregisterError { region: self, source }),
        }
    }

    pub(super) fn inner(&self) -> &RegionInner {
        &self.inner
    }
}

impl<B: Brand, A: Access, M: Memory> MemoryRegion<B, A, M> {
    /// Its bytes. No peer can change them while they are borrowed.
    pub fn as_bytes(&self) -> &[u8]
    where
        A: PeerCannotWrite,
    {
        // SAFETY: initialised, ours (0), and neither peer nor device writes: no peer may, and no request names it.
        unsafe { slice::from_raw_parts(self.inner.addr(), self.inner.len_bytes()) }
    }

    /// Its bytes, to write.
    pub fn as_bytes_mut(&mut self) -> &mut [u8]
    where
        A: Unexposed,
    {
        // SAFETY: initialised, ours alone (0), and neither peer nor device reaches it: no peer may, no request names it.
        unsafe { slice::from_raw_parts_mut(self.inner.addr(), self.inner.len_bytes()) }
    }

    /// Makes it read-only for good, and gives the first share. The memory is freed with the last of them.
    pub fn share(self) -> SharedBuffer<B>
    where
        A: PeerCannotWrite,
    {
        SharedBuffer::new(Descriptor::whole(self.inner, false))
    }

    /// What a peer needs to reach it: address, key, length and rights. Send it the bytes of this record.
    ///
    /// Peers can use it until the region is deregistered; afterwards their requests fail.
    pub fn remote(&self) -> RemoteRegion<A>
    where
        A: Exposed,
    {
        self.inner.remote()
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
        let descriptor = Descriptor::whole(Arc::clone(&self.inner), true);
        (SplitRegion { inner: self.inner, brand: PhantomData, types: PhantomData }, Buffer::new(descriptor))
    }
}

impl<B, A, M> fmt::Debug for MemoryRegion<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("len", &self.inner.len_bytes())
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
    inner: Arc<RegionInner>,
    brand: Branded<B>,
    types: PhantomData<fn() -> (A, M)>,
}

impl<B: Brand, A: DeviceMayWrite + Unexposed, M: Memory> SplitRegion<B, A, M> {
    /// Makes the region whole again from a buffer over all of it.
    ///
    /// # Errors
    ///
    /// The buffer is of another region or a part only ([`Buffer::join`] puts parts together); both come back.
    pub fn rejoin(self, whole: Buffer<B>) -> Result<MemoryRegion<B, A, M>, RejoinError<Self, Buffer<B>>> {
        if !whole.covers(&self.inner) {
            return Err(RejoinError { region: self, buffer: whole });
        }
        // The buffer was the only one, for it covers every byte and buffers do not overlap.
        drop(whole);
        Ok(MemoryRegion { inner: self.inner, brand: PhantomData, types: PhantomData })
    }
}

impl<B: Brand, A: DeviceMayWrite + Unexposed, M: Memory> SplitRegion<B, A, M> {
    /// The region again from what a window over all of it left, to be deregistered and nothing else.
    ///
    /// # Errors
    ///
    /// That is of another region or a part only; both come back.
    pub fn rejoin_lapsed(self, whole: Lapsed<B>) -> Result<LapsedRegion<B, A, M>, RejoinError<Self, Lapsed<B>>> {
        if !whole.covers(&self.inner) {
            return Err(RejoinError { region: self, buffer: whole });
        }
        // Nothing else was left of the region, for it covers every byte.
        drop(whole);
        Ok(LapsedRegion(MemoryRegion { inner: self.inner, brand: PhantomData, types: PhantomData }))
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
        self.0
            .deregister()
            .map_err(|DeregisterError { region, source }| DeregisterError { region: Self(region), source })
    }
}

impl<B, A, M> fmt::Debug for LapsedRegion<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LapsedRegion").field(&self.0).finish()
    }
}

impl<B, A, M> fmt::Debug for SplitRegion<B, A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitRegion").field("len", &self.inner.len_bytes()).finish_non_exhaustive()
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
