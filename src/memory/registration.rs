//! Registrations: what the device knows of memory, and how long it may use it.
//!
//! ```text
//!   Registration   the device's object (`ibv_mr`) and its keys; ends by `end` only. In one of two owners:
//!    ├─ RegionInner   with the owner of the memory, which is freed only after the registration has ended
//!    └─ Loan          of memory that a scope borrows (in `whole`); it frees nothing
//! ```
#![allow(unsafe_code, reason = "owns registrations and the memory behind them")]

use super::access::Access;
use super::backing::sealed::Owner;
use super::backing::{Address, Exported, HeldOwner, TakenApart};
use super::error::RegisterFailure;
use super::remote::RemoteRegion;
use super::{Exposed, options};
use crate::device::OnDemandPaging;
use crate::domain::{DomainId, DomainInner};
use crate::os::page_bytes;
use crate::provider::handles::ObjectPtr;
use crate::sys;
use crate::types::{Lkey, Rkey};
use crate::verb_error::{VerbError, note_leak};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::{mem, ptr, sync::Arc};

const WORD: usize = 8;

/// How often the same bytes may be registered, one registration around the other. Each one is dropped within the drop
/// of the one around it, so the stack sets a bound.
const MOST_NESTED: u8 = 32;

/// The bytes that a registration is to be over.
#[derive(Clone, Copy)]
pub(super) struct Span {
    address: Address,
    len_bytes: usize,
    /// `Some` where the bytes are not mapped here: `address` is then no address of this process.
    exported: Option<Exported>,
    /// The keys name the first byte by 0.
    zero_based: bool,
}

/// The device's object for registered memory.
///
/// Dropping it does not end it: memory that was not given back stays registered, which is safe.
pub(super) struct Registration {
    /// # Invariants
    ///
    /// 0. Came from the provider of `domain`, and is registered while `Some`.
    raw: Option<ObjectPtr<sys::ibv_mr>>,
    lkey: Lkey,
    rkey: Rkey,
    domain: Arc<DomainInner>,
}

impl Registration {
    /// # Safety
    ///
    /// Until the registration has ended, the bytes of `span` stay where they are and may be accessed by the device, and
    /// by peers with `rights`. The descriptor in `span` is open.
    unsafe fn new(
        domain: &Arc<DomainInner>,
        span: Span,
        rights: sys::ibv_access_flags,
    ) -> Result<Self, RegisterFailure> {
        span.check(rights)?;
        let Span { address, len_bytes, exported, zero_based } = span;
        let (provider, pd, addr) = (domain.context.provider, domain.raw, address.as_ptr());
        let raw = match exported {
            Some(Exported { fd, offset }) => {
                let base = if zero_based { 0 } else { offset };
                // SAFETY: the domain is alive, and the descriptor open (caller). The registration holds the dma-buf
                // itself.
                unsafe { provider.reg_dmabuf_mr(pd, offset, len_bytes, base, fd, rights) }
            }
            // SAFETY: the domain is alive; the memory stays and may be accessed (caller).
            None if zero_based => unsafe { provider.reg_mr_iova(pd, addr, len_bytes, 0, rights) },
            // SAFETY: the domain is alive; the memory stays and may be accessed (caller).
            None => unsafe { provider.reg_mr(pd, addr, len_bytes, rights) },
        };
        let device = || domain.context.query_device_ex();
        let has_paging = || device().is_ok_and(|device| OnDemandPaging(device.odp_caps).is_there());
        let raw = raw.map_err(|error| RegisterFailure::of(error, len_bytes, rights, has_paging))?;
        // SAFETY: registered just now, so the struct is there; providers do not change it afterwards.
        let mr = unsafe { raw.as_ref() };
        let raw = Some(ObjectPtr(raw));
        Ok(Self { raw, lkey: Lkey(mr.lkey), rkey: Rkey(mr.rkey), domain: Arc::clone(domain) })
    }

    /// The registration of no bytes, of which the device knows nothing.
    fn of_nothing(domain: &Arc<DomainInner>) -> Self {
        Self { raw: None, lkey: Lkey(0), rkey: Rkey(0), domain: Arc::clone(domain) }
    }

    /// Moves the device's object out. The keys stay, to be named by requests.
    fn take(&mut self) -> Self {
        Self { raw: self.raw.take(), lkey: self.lkey, rkey: self.rkey, domain: Arc::clone(&self.domain) }
    }

    /// Whether the device knows it.
    pub(super) fn is_there(&self) -> bool {
        self.raw.is_some()
    }

    /// `ibv_dereg_mr`. After `Ok` no peer reaches the memory by its keys, and no request may name them. Does nothing
    /// the second time.
    pub(super) fn end(&mut self) -> Result<(), VerbError> {
        if let Some(raw) = self.raw {
            // SAFETY: registered (0).
            unsafe { self.domain.context.provider.dereg_mr(raw.0) }?;
            self.raw = None;
        }
        Ok(())
    }

    /// Leaves to the device, for the life of the process, what it would not end; with the domain that it needs.
    pub(super) fn leak(&self, what: &'static str, error: VerbError) {
        mem::forget(Arc::clone(&self.domain));
        note_leak(what, error);
    }
}

/// A registration and the memory behind it. Reference-counted: every buffer of a region holds it.
pub(crate) struct RegionInner {
    /// # Invariants
    ///
    /// 0. Over `len_bytes` from `address`.
    registration: Registration,
    address: Address,
    len_bytes: usize,
    /// 1. The owner of those bytes, which is not rebuilt before the registration has ended. `None` for borrowed memory.
    owner: Option<HeldOwner>,
    /// 2. How many words of the bytes the processor may reach as atomics: all or none. Not none only if the first is
    ///    aligned and all are mapped here.
    words: usize,
    rights: sys::ibv_access_flags,
}

impl RegionInner {
    /// Registers memory that was taken apart, or gives it back.
    ///
    /// # Safety
    ///
    /// Where `exported` is `Some`, the owner keeps its descriptor open.
    pub(super) unsafe fn register<A: Access, M: Owner>(
        domain: &Arc<DomainInner>,
        memory: TakenApart<M>,
        exported: Option<Exported>,
    ) -> Result<Self, (TakenApart<M>, RegisterFailure)> {
        if memory.depth() > MOST_NESTED {
            return Err((memory, RegisterFailure::TooDeep { most: MOST_NESTED }));
        }
        let (address, len_bytes) = (memory.address(), memory.len_bytes());
        let span = Span { address, len_bytes, exported, zero_based: A::ZERO_BASED };
        // SAFETY: the owner is taken apart, so nobody else claims the bytes; `Drop` and `end` rebuild it only after the
        // registration has ended. It keeps the descriptor open (caller).
        match unsafe { Registration::new(domain, span, A::FLAGS) } {
            Ok(registration) => Ok(Self::of(registration, span, A::FLAGS, Some(memory.hold()))),
            Err(failure) => Err((memory, failure)),
        }
    }

    /// Registers static memory, for the device to read.
    pub(super) fn of_static(domain: &Arc<DomainInner>, bytes: &'static [u8]) -> Result<Self, RegisterFailure> {
        let (span, rights) = (Span::of_slice(ptr::from_ref(bytes).cast_mut(), false), sys::ibv_access_flags(0));
        // SAFETY: borrowed for ever, so nobody writes or frees it; without any right the device only reads it.
        let registration = unsafe { Registration::new(domain, span, rights) }?;
        Ok(Self::of(registration, span, rights, None))
    }

    /// Registers borrowed memory. The registration comes out apart from the region, which then only knows address and
    /// keys.
    ///
    /// # Safety
    ///
    /// As for [`Registration::new`].
    pub(super) unsafe fn lend<A: Access, T>(
        domain: &Arc<DomainInner>,
        memory: *mut [T],
    ) -> Result<(Registration, Arc<Self>), RegisterFailure> {
        let span = Span::of_slice(memory, A::ZERO_BASED);
        let mut registration = if span.len_bytes == 0 {
            // A device cannot register an empty range. It need not: a request with no bytes names no key.
            Registration::of_nothing(domain)
        } else {
            // SAFETY: the caller's promise.
            unsafe { Registration::new(domain, span, A::FLAGS) }?
        };
        Ok((registration.take(), Arc::new(Self::of(registration, span, A::FLAGS, None))))
    }

    fn of(registration: Registration, span: Span, rights: sys::ibv_access_flags, owner: Option<HeldOwner>) -> Self {
        let (Span { address, len_bytes, .. }, words) = (span, span.words());
        Self { registration, address, len_bytes, owner, words, rights }
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

    /// The device's object while it is registered, else null: for requests that name the region and not only its keys.
    pub(crate) fn raw(&self) -> *mut sys::ibv_mr {
        self.registration.raw.map_or(ptr::null_mut(), |raw| raw.0.as_ptr())
    }

    /// Whether windows may be bound to it: whether its rights are [`MayBind`](super::MayBind).
    pub(super) fn may_bind(&self) -> bool {
        let (needed, forbidden) = (options::MW_BIND, options::RELAXED_ORDERING);
        self.rights.0 & (needed | forbidden) == needed
    }

    /// What a peer needs to use a region with the rights `A`.
    pub(super) fn remote<A: Exposed>(&self) -> RemoteRegion<A> {
        let base = if A::ZERO_BASED { 0 } else { self.address.addr() as u64 };
        RemoteRegion::of(base, self.len_bytes as u64, self.registration.rkey)
    }

    /// The word with this number; `None` if there is none, or if the processor does not reach it.
    ///
    /// Only for memory that peers or other processes may write. Nobody has a slice of it: the type that gives words
    /// gives no slices, and peers, other processes and the soft device use whole atomic words too.
    pub(super) fn word(&self, index: usize) -> Option<&AtomicU64> {
        let word = || self.address.as_ptr().cast::<u64>().wrapping_add(index);
        // SAFETY: inside the memory, aligned and mapped here (2); accessed as an atomic word by everybody (see above).
        (index < self.words).then(|| unsafe { AtomicU64::from_ptr(word()) })
    }

    /// Ends the registration. The owner is left, for borrowed memory none.
    pub(super) fn end(&mut self) -> Result<Option<HeldOwner>, VerbError> {
        self.registration.end()?;
        Ok(self.owner.take())
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        match self.end() {
            Ok(Some(owner)) => {
                // The owner may be of the program's own type. If its drop panics, the panic has been reported; it must
                // not unwind out of this drop. SAFETY: the registration has ended and all buffers are gone, so nobody
                // uses the bytes (1).
                let free = || unsafe { owner.free() };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(free)) {
                    mem::forget(panic);
                }
            }
            Ok(None) => (),
            // The owner is leaked with the registration.
            Err(error) => self.registration.leak("a memory region", error),
        }
    }
}

impl Span {
    fn of_slice<T>(slice: *mut [T], zero_based: bool) -> Self {
        let address = Address::expose(slice.cast());
        Self { address, len_bytes: slice.len() * mem::size_of::<T>(), exported: None, zero_based }
    }

    /// Refuses what no device takes, and what peers could not reach by words.
    fn check(self, rights: sys::ibv_access_flags) -> Result<(), RegisterFailure> {
        let Self { len_bytes, exported, zero_based, .. } = self;
        let (address, page_bytes) = (self.address.addr(), page_bytes());
        if len_bytes == 0 {
            return Err(RegisterFailure::Empty);
        }
        if zero_based && exported.is_none() && !address.is_multiple_of(page_bytes) {
            return Err(RegisterFailure::NotInPages { address, page_bytes });
        }
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
