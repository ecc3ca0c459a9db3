//! How memory enters a registration, and how it comes back: its owner is taken apart, the bytes are registered, the
//! registration ends, and the owner is rebuilt.
//!
//! A `Box`, a `Vec` or a `&mut` promises that nobody else writes the bytes behind it, and each move of such an owner
//! repeats that promise. A device that writes the bytes breaks it. So the library keeps no such owner while memory is
//! registered: it takes the owner apart into a raw pointer with exposed provenance, and rebuilds the owner after
//! deregistration. How that is done for each kind of memory is in [`owners`](super::owners).
//!
//! ```text
//!   M ──TakenApart::of──▶ TakenApart<M> ──hold──▶ HeldOwner     (a device may use the bytes)
//!   M ◀──Owner::rebuild── TakenApart<M> ◀──────── ReleasedOwner ◀──release── (no device knows the bytes any more)
//! ```
//!
//! A registration is what the device knows of the memory:
//!
//! ```text
//!   Registration   the device's object (`ibv_mr`) and its keys. It ends by `end` only, and has one of two owners:
//!    ├─ RegionInner   which has the owner of the memory too, and frees that only after the registration has ended
//!    └─ Loan          for memory that a scope borrows; it frees nothing
//! ```
#![allow(unsafe_code, reason = "calls the verbs of registration, and owns registrations and the memory behind them")]

use super::access::Access;
use super::error::RegisterFailure;
use super::remote::RemoteRegion;
use super::{Exposed, LocalRead, options};
use crate::device::OnDemandPaging;
use crate::device::iwarp::NotOnIwarp;
use crate::domain::{DomainId, DomainInner};
use crate::os::page_bytes;
use crate::provider::handles::ObjectPtr;
use crate::seal::Key;
use crate::sys;
use crate::trace;
use crate::types::{Lkey, Rkey};
use crate::verb_error::{VerbError, note_leak};
use std::any::Any;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, mem, ptr};

const WORD: usize = 8;

/// How many more times a buffer may be registered, each time around the last registration. The drop of each
/// registration runs inside the drop of the next one, so the stack sets a bound.
const MOST_NESTED: u8 = 32;

pub(super) mod sealed {
    /// An owner of bytes that can be taken apart and rebuilt.
    #[allow(unnameable_types, reason = "above the traits that seal `Memory` and `OpaqueMemory`")]
    pub trait Owner: Sized {
        /// The parts of the owner besides its bytes. Unlike a reference or a box, they claim none of the bytes.
        type Kept: Send + 'static;
        /// The type to rebuild the owner as where the code no longer knows `Self`. Usually it is `Self`.
        type Freed: Owner<Kept = Self::Kept> + 'static;
        /// Takes the owner apart, without freeing anything.
        fn take_apart(self, key: super::Key) -> super::Parts<Self::Kept>;
        /// Rebuilds the owner.
        fn rebuild(parts: super::TakenApart<Self>) -> Self;
    }
}
use sealed::Owner;

/// An owner that was taken apart: its bytes, and its other parts.
#[derive(Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct Parts<K> {
    /// The first byte. The pointer may be used to access all bytes.
    pub(super) first: *mut u8,
    pub(super) len_bytes: usize,
    pub(super) kept: K,
    /// How many nested registrations these bytes have already.
    pub(super) depth: u8,
    /// `Some` for memory that is not mapped in this process. `kept` keeps the descriptor open.
    pub(super) exported: Option<Exported>,
}

impl<K> Parts<K> {
    /// The parts of an owner of mapped bytes that are not registered yet.
    pub(super) fn of(first: *mut u8, len_bytes: usize, kept: K) -> Self {
        Self { first, len_bytes, kept, depth: 0, exported: None }
    }
}

/// Memory of another driver: the descriptor of a dma-buf, and the offset of the memory inside the dma-buf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exported {
    pub(super) fd: RawFd,
    pub(super) offset: u64,
}

/// An address, which by itself allows no access: the types that own the bytes decide who may touch them.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Address(ObjectPtr<u8>);

impl Address {
    /// The address of bytes that a device may access from now on. A device gets the address as an integer.
    pub(super) fn expose(first: *mut u8) -> Self {
        first.expose_provenance();
        // `first` is null only if the memory is not mapped in this process. Nobody accesses such memory through this
        // pointer, so a dangling one can take the place of null.
        Self(ObjectPtr(NonNull::new(first).unwrap_or(NonNull::dangling())))
    }

    #[inline(always)]
    pub(super) fn as_non_null(self) -> NonNull<u8> {
        self.0.0
    }

    #[inline(always)]
    pub(super) fn as_ptr(self) -> *mut u8 {
        self.as_non_null().as_ptr()
    }

    #[inline(always)]
    pub(super) fn addr(self) -> usize {
        self.as_non_null().addr().get()
    }

    pub(super) fn plus(self, offset: usize) -> Self {
        let moved = self.as_ptr().wrapping_add(offset);
        // `moved` is never null: no memory wraps around the end of the address space. So the dangling pointer is never
        // used.
        Self(ObjectPtr(NonNull::new(moved).unwrap_or(NonNull::dangling())))
    }
}

/// An `M` that was taken apart. Dropping this leaks the owner.
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct TakenApart<M: Owner> {
    /// # Invariants
    ///
    /// 0. The fields are the parts that `M::take_apart` gave, and nobody else rebuilds the owner from them. Nobody uses
    ///    the bytes, devices and peers included, unless this is inside of a [`HeldOwner`].
    address: Address,
    len_bytes: usize,
    depth: u8,
    exported: Option<Exported>,
    /// 1. Dropping this leaks the parts: a device may still know the bytes, if a registration did not end.
    kept: ManuallyDrop<M::Kept>,
}

impl<M: Owner> TakenApart<M> {
    pub(super) fn of(memory: M) -> Self {
        let Parts { first, len_bytes, kept, depth, exported } = memory.take_apart(Key(()));
        Self { address: Address::expose(first), len_bytes, depth, exported, kept: ManuallyDrop::new(kept) }
    }

    pub(super) fn into_kept(self) -> M::Kept {
        ManuallyDrop::into_inner(self.kept)
    }

    /// The same parts, for another type of owner that has the same kept parts.
    fn retype<N: Owner<Kept = M::Kept>>(self) -> TakenApart<N> {
        let Self { address, len_bytes, depth, exported, kept } = self;
        TakenApart { address, len_bytes, depth, exported, kept }
    }

    /// Keeps the owner for as long as a device may use the bytes.
    fn hold(self) -> HeldOwner {
        HeldOwner { depth: self.depth, parts: Mutex::new(Box::new(self.retype::<M::Freed>())) }
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// How many nested registrations these bytes have already.
    fn depth(&self) -> u8 {
        self.depth
    }

    /// The dma-buf, if the memory is not mapped in this process. Its descriptor is open while this or the owner is
    /// kept.
    fn exported(&self) -> Option<Exported> {
        self.exported
    }
}

impl<M: Owner> fmt::Debug for TakenApart<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenApart").field("len", &self.len_bytes).finish_non_exhaustive()
    }
}

/// The parts of an owner, whatever its type.
trait AnyParts: Send {
    /// Rebuilds the owner and drops it.
    fn free(self: Box<Self>);
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<M: Owner + 'static> AnyParts for TakenApart<M> {
    fn free(self: Box<Self>) {
        drop(M::rebuild(*self));
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// An owner that was taken apart, without its type, while a device may use the bytes. Dropping this leaks the owner.
struct HeldOwner {
    depth: u8,
    /// Never locked: the mutex makes this `Sync`, since parts are `Send` but not always `Sync`.
    parts: Mutex<Box<dyn AnyParts>>,
}

impl HeldOwner {
    /// How many nested registrations these bytes had before this one.
    fn depth(&self) -> u8 {
        self.depth
    }

    /// Releases the parts, to rebuild the owner from them.
    ///
    /// # Safety
    ///
    /// Nobody uses the bytes any more, and nobody can use them later through what the registration gave out.
    unsafe fn release(self) -> ReleasedOwner {
        ReleasedOwner(self.parts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The parts of an owner whose bytes nobody uses any more. Dropping this leaks the owner.
pub(super) struct ReleasedOwner(Box<dyn AnyParts>);

impl ReleasedOwner {
    /// Rebuilds the owner and drops it.
    fn free(self) {
        self.0.free();
    }

    /// The parts, if they are those of an `M`.
    pub(super) fn into_parts<M: Owner>(self) -> Option<TakenApart<M>> {
        let parts = self.0.into_any().downcast::<TakenApart<M::Freed>>().ok()?;
        Some(parts.retype())
    }
}

/// A range of bytes to be registered. It gives no access to the bytes.
#[derive(Clone, Copy)]
struct Span {
    address: Address,
    len_bytes: usize,
    /// `Some` if the bytes are not mapped in this process. Then `address` means nothing.
    exported: Option<Exported>,
    /// Whether requests with the keys address the first byte as 0.
    zero_based: bool,
    rights: sys::ibv_access_flags,
}

impl Span {
    /// Memory of this process, to be registered with the rights `A`.
    fn of<A: Access, T>(memory: *mut [T]) -> Self {
        let address = Address::expose(memory.cast());
        let len_bytes = memory.len() * mem::size_of::<T>();
        Self { address, len_bytes, exported: None, zero_based: A::ZERO_BASED, rights: A::FLAGS }
    }

    fn is_empty(self) -> bool {
        self.len_bytes == 0
    }

    /// The address by which requests with the keys name the first byte.
    fn base(self) -> u64 {
        match self.exported {
            _ if self.zero_based => 0,
            Some(Exported { offset, .. }) => offset,
            None => self.address.addr() as u64,
        }
    }

    /// Refuses memory that no device can register, and memory for peers that does not consist of whole aligned words.
    fn check(self) -> Result<(), RegisterFailure> {
        let Self { len_bytes, exported, zero_based, rights, .. } = self;
        let start = exported.map_or(self.address.addr(), |exported| exported.offset as usize);
        let (address, page_bytes) = (start, page_bytes());
        if len_bytes == 0 {
            return Err(RegisterFailure::Empty);
        }
        if zero_based && exported.is_none() && !address.is_multiple_of(page_bytes) {
            return Err(RegisterFailure::NotInPages { address, page_bytes });
        }
        // Memory for windows is exposed, too: peers may reach it later.
        let private = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | options::FLAGS;
        let exposed = rights.0 & !private != 0;
        if exposed && !(address.is_multiple_of(WORD) && len_bytes.is_multiple_of(WORD)) {
            return Err(RegisterFailure::NotInWords { address, len_bytes });
        }
        Ok(())
    }

    fn words(self) -> usize {
        let aligned = self.address.addr().is_multiple_of(WORD);
        if aligned && self.exported.is_none() { self.len_bytes / WORD } else { 0 }
    }
}

/// The device's object for registered memory, `ibv_mr`, and its keys.
///
/// Dropping this does not end the registration: memory that was not given back stays registered, which is safe.
struct Registration {
    /// # Invariants
    ///
    /// 0. The object came from the provider of `domain`, and is registered. Nobody else deregisters it, and no other
    ///    `Registration` has it. `None` over no bytes, after the end, and after the registration was moved out.
    raw: Option<ObjectPtr<sys::ibv_mr>>,
    lkey: Lkey,
    rkey: Rkey,
    /// What peers may go on to do once the device has ended the registration.
    aftermath: Aftermath,
    /// 1. Keeps the domain of the object alive until the registration has ended. A registration that the device does
    ///    not end is leaked, with its domain.
    domain: Arc<DomainInner>,
}

/// What peers may go on to do once `ibv_dereg_mr` has returned 0.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aftermath {
    Nothing,
    /// Writes that have begun, until [`finish_copies`](crate::provider::Provider::finish_copies).
    Writes,
    /// Reads that have begun, for as long as the peer likes.
    Reads,
}

impl Aftermath {
    /// The aftermath of a registration with these rights.
    fn of(domain: &DomainInner, rights: sys::ibv_access_flags) -> Self {
        let has = |right: sys::ibv_access_flags| rights.0 & right.0 != 0;
        match domain.context.promises().quirks.deregisters_early {
            true if has(sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ) => Self::Reads,
            true if has(sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE) => Self::Writes,
            _ => Self::Nothing,
        }
    }
}

impl Registration {
    /// The registration of no bytes. The device knows nothing of it.
    fn of_nothing(domain: &Arc<DomainInner>) -> Self {
        let domain = Arc::clone(domain);
        Self { raw: None, lkey: Lkey(0), rkey: Rkey(0), aftermath: Aftermath::Nothing, domain }
    }

    /// `ibv_reg_mr`, `ibv_reg_mr_iova` or `ibv_reg_dmabuf_mr`.
    ///
    /// # Safety
    ///
    /// Until the registration has [ended](Self::end), the bytes of `span` are valid memory, which the device and peers
    /// may access as its rights say. The descriptor in `span`, if any, is open during this call.
    unsafe fn register(domain: &Arc<DomainInner>, span: Span) -> Result<Self, VerbError> {
        let (provider, pd) = (domain.context.provider, domain.raw());
        let Span { address, len_bytes: len, exported, zero_based, rights } = span;
        let (first, iova) = (address.as_ptr(), span.base());
        let raw = match exported {
            // SAFETY: the domain is alive until the registration has ended (1). The memory is valid until then
            // (caller).
            None if !zero_based => unsafe { provider.reg_mr(pd, first, len, rights) },
            // SAFETY: as above.
            None => unsafe { provider.reg_mr_iova(pd, first, len, iova, rights) },
            // SAFETY: as above. The descriptor is open during this call (caller). After the call, the registration
            // keeps the dma-buf alive.
            Some(Exported { fd, offset }) => unsafe { provider.reg_dmabuf_mr(pd, offset, len, iova, fd, rights) },
        }?;
        // SAFETY: the object was registered just now, so its struct is alive; providers write the keys only when they
        // register memory.
        let mr = unsafe { raw.as_ref() };
        let (lkey, rkey, domain) = (Lkey(mr.lkey), Rkey(mr.rkey), Arc::clone(domain));
        let aftermath = Aftermath::of(&domain, rights);
        Ok(Self { raw: Some(ObjectPtr(raw)), lkey, rkey, aftermath, domain })
    }

    /// Whether the device or a peer may still access the memory.
    fn is_live(&self) -> bool {
        self.raw.is_some() || self.aftermath != Aftermath::Nothing
    }

    /// Moves the registration out. What is left has the keys, but does not end anything.
    fn take(&mut self) -> Self {
        let (lkey, rkey, domain) = (self.lkey, self.rkey, Arc::clone(&self.domain));
        let aftermath = mem::replace(&mut self.aftermath, Aftermath::Nothing);
        Self { raw: self.raw.take(), lkey, rkey, aftermath, domain }
    }

    /// `ibv_dereg_mr`. After `Ok` no peer reaches the memory by its keys, and no request may name them. After `Err` the
    /// memory is still registered, or a peer may still access it. Does nothing after an `Ok`.
    fn end(&mut self) -> Result<(), VerbError> {
        let provider = self.domain.context.provider;
        if let Some(raw) = self.raw.take() {
            // SAFETY: the object is registered, and nobody else deregisters it (0).
            unsafe { provider.dereg_mr(raw.0) }.inspect_err(|_| self.raw = Some(raw))?;
        }
        match self.aftermath {
            Aftermath::Nothing => return Ok(()),
            // SAFETY: the domain is alive (1).
            Aftermath::Writes => unsafe { provider.finish_copies(self.domain.raw()) }?,
            Aftermath::Reads => return Err(VerbError::new("ibv_dereg_mr", libc::EOPNOTSUPP)),
        }
        self.aftermath = Aftermath::Nothing;
        Ok(())
    }

    /// Reports a leak for the life of the process, after [`end`](Self::end) has failed. If the device still has the
    /// registration, leaks the domain, too, which the registration needs.
    fn leak(&self, what: &'static str, error: VerbError) {
        if self.raw.is_some() {
            mem::forget(Arc::clone(&self.domain));
        }
        if self.aftermath == Aftermath::Reads && self.raw.is_none() {
            // The registration has ended, but reads that peers have begun may go on, so the memory is never freed.
            // Trying again does not help, and docs/providers.md describes this leak. So tell only the subscriber, and
            // print nothing.
            trace::leaked("memory that peers could read", &error);
        } else {
            note_leak(what, error);
        }
    }
}

/// A registration and the memory behind it. Reference-counted: every buffer of a region holds it.
pub(crate) struct RegionInner {
    /// # Invariants
    ///
    /// 0. The registration is over `len_bytes` from `address`, until it has ended.
    registration: Registration,
    address: Address,
    len_bytes: usize,
    /// The address by which peers name the first byte.
    base: u64,
    /// 1. The owner of those bytes. `None` for borrowed and static memory.
    owner: Option<HeldOwner>,
    /// 2. How many words of the memory the processor may reach as atomics: all or none. If it is not 0, the first word
    ///    is aligned, and all words are mapped in this process.
    words: usize,
    rights: sys::ibv_access_flags,
}

impl RegionInner {
    /// Registers memory that was taken apart. If that fails, returns the memory.
    pub(super) fn register<A: Access, M: Owner>(
        domain: &Arc<DomainInner>,
        memory: TakenApart<M>,
    ) -> Result<Self, (TakenApart<M>, RegisterFailure)> {
        if memory.depth() > MOST_NESTED {
            return Err((memory, RegisterFailure::TooDeep { most: MOST_NESTED }));
        }
        let (address, len_bytes, exported) = (memory.address(), memory.len_bytes(), memory.exported());
        let span = Span { address, len_bytes, exported, zero_based: A::ZERO_BASED, rights: A::FLAGS };
        // SAFETY: `memory` is an owner that was taken apart, so nobody else uses its bytes. The owner of a dma-buf also
        // keeps the descriptor open. On success the region holds the owner, and only `end` releases it, after the
        // registration has ended.
        match unsafe { Self::register_span(domain, span) } {
            Ok(mut region) => {
                region.owner = Some(memory.hold());
                Ok(region)
            }
            Err(failure) => Err((memory, failure)),
        }
    }

    /// Registers static memory, for the device to read.
    pub(super) fn of_static(domain: &Arc<DomainInner>, bytes: &'static [u8]) -> Result<Self, RegisterFailure> {
        let span = Span::of::<LocalRead, u8>(ptr::from_ref(bytes).cast_mut());
        // SAFETY: the bytes are borrowed for `'static`, so nobody writes or frees them. With these rights the device
        // only reads them.
        unsafe { Self::register_span(domain, span) }
    }

    /// Registers memory that has another owner.
    ///
    /// # Safety
    ///
    /// Until the registration has ended, the bytes of `span` stay where they are and may be accessed by the device, and
    /// by peers, as its rights say. The descriptor in `span` is open.
    unsafe fn register_span(domain: &Arc<DomainInner>, span: Span) -> Result<Self, RegisterFailure> {
        span.check()?;
        let atomic = span.rights.0 & sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0 != 0;
        if atomic && domain.context.is_iwarp() {
            return Err(RegisterFailure::NotOnIwarp(NotOnIwarp::Atomics));
        }
        if span.zero_based && domain.context.promises().quirks.ignores_zero_based {
            let source = VerbError::new("ibv_reg_mr", libc::EOPNOTSUPP);
            return Err(RegisterFailure::Unsupported { feature: "zero-based memory", source });
        }
        let Span { len_bytes, rights, .. } = span;
        // SAFETY: the caller of this function guarantees what `register` requires.
        let registration = unsafe { Registration::register(domain, span) };
        let device = || domain.context.query_device_ex();
        let has_paging = || device().is_ok_and(|device| OnDemandPaging(device.odp_caps).is_there());
        let registration = registration.map_err(|error| RegisterFailure::of(error, len_bytes, rights, has_paging))?;
        Ok(Self::of(registration, span))
    }

    /// A region over no bytes. A device cannot register an empty range, and need not: a request with no bytes names no
    /// key.
    fn of_nothing(domain: &Arc<DomainInner>, span: Span) -> Self {
        Self::of(Registration::of_nothing(domain), Span { len_bytes: 0, ..span })
    }

    fn of(registration: Registration, span: Span) -> Self {
        let (Span { address, len_bytes, rights, .. }, words, base) = (span, span.words(), span.base());
        Self { registration, address, len_bytes, base, owner: None, words, rights }
    }

    /// Whether it was registered with the rights `A`.
    pub(super) fn has_rights<A: Access>(&self) -> bool {
        self.rights == A::FLAGS
    }

    pub(super) fn depth(&self) -> u8 {
        self.owner.as_ref().map_or(0, HeldOwner::depth)
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn lkey(&self) -> Lkey {
        self.registration.lkey
    }

    #[inline(always)]
    pub(super) fn domain(&self) -> DomainId {
        self.registration.domain.id()
    }

    /// The device's object while the memory is registered, else null: for requests that name the region and not only
    /// its keys.
    pub(crate) fn raw(&self) -> *mut sys::ibv_mr {
        self.registration.raw.map_or(ptr::null_mut(), |raw| raw.0.as_ptr())
    }

    /// Whether windows may be bound over the region: whether its rights are [`MayBind`](super::MayBind).
    pub(super) fn may_bind(&self) -> bool {
        let (needed, forbidden) = (options::MW_BIND, options::RELAXED_ORDERING);
        self.rights.0 & (needed | forbidden) == needed
    }

    /// The record that a peer needs to use a region with the rights `A`.
    pub(super) fn remote<A: Exposed>(&self) -> RemoteRegion<A> {
        RemoteRegion::of(self.base, self.len_bytes as u64, self.registration.rkey)
    }

    /// The word with this index; `None` if there is no such word, or if the processor does not reach it.
    ///
    /// Only for memory that peers or other processes reach. If these may write, no type gives a slice of the memory. If
    /// peers only read, the program needs `&mut` of the region to write words, so no slice exists then. Peers, other
    /// processes and the soft device use whole atomic words too.
    pub(super) fn word(&self, index: usize) -> Option<&AtomicU64> {
        let word = || self.address.as_ptr().cast::<u64>().wrapping_add(index);
        // SAFETY: the word is inside the memory, aligned and mapped in this process (2). While anybody writes the word,
        // all accesses to it are atomic (see the comment of this function).
        (index < self.words).then(|| unsafe { AtomicU64::from_ptr(word()) })
    }

    /// Ends the registration, and returns the owner; `None` for borrowed and static memory. The region then has no
    /// bytes.
    pub(super) fn end(&mut self) -> Result<Option<ReleasedOwner>, VerbError> {
        self.registration.end()?;
        (self.len_bytes, self.words) = (0, 0);
        // SAFETY: the registration has ended, so neither the device nor peers use the bytes. The program does not use
        // them either: the region is borrowed mutably, so no buffer of it is left, and it has no bytes for new ones.
        Ok(self.owner.take().map(|owner| unsafe { owner.release() }))
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        match self.end() {
            Ok(Some(owner)) => {
                // `free` can drop a value of the program's own type, and that drop can panic. The panic must not unwind
                // out of this `drop`. The panic hook has already reported it.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| owner.free())) {
                    mem::forget(panic);
                }
            }
            Ok(None) => (),
            // Perhaps the device or a peer still uses the memory, so nothing is freed. The fields are dropped after
            // this function: dropping a `Registration` ends no registration, and dropping a `HeldOwner` leaks the
            // owner.
            Err(error) => self.registration.leak("a memory region", error),
        }
    }
}

/// Borrowed memory that a scope is about to lend. `H` is the handle that the closure of the scope gets.
pub(crate) struct Lending<'env, H> {
    /// # Invariants
    ///
    /// 0. The memory of the span is borrowed for `'env`: mutably, or shared if the rights of the span only allow reads.
    span: Span,
    /// Whether peers will reach the memory.
    is_exposed: bool,
    /// Makes the handle. The region has the rights of the span, and nobody else has a handle of it.
    handle: fn(RegionInner) -> H,
    memory: PhantomData<&'env mut ()>,
}

impl<'env, H> Lending<'env, H> {
    /// Memory for the device to read.
    pub(super) fn of_shared<T>(memory: &'env [T], handle: fn(RegionInner) -> H) -> Self {
        // Nobody writes through this pointer: the rights allow only reads.
        let span = Span::of::<LocalRead, T>(ptr::from_ref(memory).cast_mut());
        Self { span, is_exposed: false, handle, memory: PhantomData }
    }

    /// Memory that is registered with the rights `A`.
    pub(super) fn of_unique<A: Access, T>(
        memory: &'env mut [T],
        is_exposed: bool,
        handle: fn(RegionInner) -> H,
    ) -> Self {
        Self { span: Span::of::<A, T>(ptr::from_mut(memory)), is_exposed, handle, memory: PhantomData }
    }

    /// Registers the memory.
    ///
    /// # Safety
    ///
    /// The memory stays borrowed until all requests that name it have ended and, if peers reach it, until [`Loan::end`]
    /// has returned `Ok`. The handle and what is made of it are not used after that.
    pub(crate) unsafe fn start(self, domain: &Arc<DomainInner>) -> Result<(Loan, H), RegisterFailure> {
        let Self { span, is_exposed, handle, .. } = self;
        // At the end of the scope, borrowed memory goes back to its owner, and no peer may reach the memory then. If
        // the provider cannot ensure that, refuse now: at the end of the scope, the only way out is to abort. For
        // writes, call `finish_copies` once, to see whether it works on this machine.
        match Aftermath::of(domain, span.rights) {
            Aftermath::Nothing => {}
            Aftermath::Writes => {
                // SAFETY: the domain is alive: the caller has a reference to it.
                unsafe { domain.context.provider.finish_copies(domain.raw()) }.map_err(RegisterFailure::Verb)?;
            }
            Aftermath::Reads => {
                let (feature, source) = ("borrowed memory that peers may read", VerbError::unsupported("ibv_dereg_mr"));
                return Err(RegisterFailure::Unsupported { feature, source });
            }
        }
        let mut region = if span.is_empty() && !is_exposed {
            RegionInner::of_nothing(domain, span)
        } else {
            // SAFETY: the memory is borrowed mutably, or by a shared borrow if the rights allow only reads (0). It
            // stays borrowed until no request and no peer can access it any more (caller).
            unsafe { RegionInner::register_span(domain, span) }?
        };
        // `take` moves the registration into the `Loan`. The region keeps its address and its keys, so that requests
        // can name them.
        Ok((Loan { registration: region.registration.take(), is_exposed }, handle(region)))
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
        self.is_exposed && self.registration.is_live()
    }

    /// Leaks the registration, which the device did not end.
    pub(crate) fn leak(self, error: VerbError) {
        self.registration.leak("the registration of borrowed memory", error);
    }
}
