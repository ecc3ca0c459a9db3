//! The device's windows, and what goes with a window through a ledger.
//!
//! ASSUMPTION: a provider reads the `ibv_mw` of a posted bind before the device can complete the request.
#![allow(unsafe_code, reason = "owns raw windows")]

use super::bindable::Bindable;
use super::part::{Descriptor, Part};
use crate::domain::{DomainId, DomainInner};
use crate::provider::handles::ObjectPtr;
use crate::provider::reviewed::Windows;
use crate::sys::{self, ibv_mw_type};
use crate::types::Rkey;
use crate::verb_error::{VerbError, note_leak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{mem, ptr::NonNull};

/// The device's window, shared by the handle of it and, for type 2, by the pair that ends it.
pub(crate) struct WindowCore {
    /// # Invariants
    ///
    /// 0. Came from `alloc_mw` of the domain's provider, and is alive unless `ended`.
    raw: ObjectPtr<sys::ibv_mw>,
    /// 1. Set under `guard`.
    ended: AtomicBool,
    /// 2. Held while the window is ended, and while the key of one of type 1 is read or written, by verbs too. The key
    ///    of one of type 2 is written by its only handle.
    guard: Mutex<()>,
    /// For a window of type 2, the address of its pair: to be compared only.
    pair: Option<usize>,
    /// Whether the end of the window gives the memory back, and peers are kept within its bounds.
    barrier: bool,
    /// Whether a request may end it.
    revocable: bool,
    domain: Arc<DomainInner>,
}

impl WindowCore {
    pub(super) fn alloc(domain: &Arc<DomainInner>, pair: Option<NonNull<sys::ibv_qp>>) -> Result<Arc<Self>, VerbError> {
        let kind = if pair.is_none() { ibv_mw_type::IBV_MW_TYPE_1 } else { ibv_mw_type::IBV_MW_TYPE_2 };
        let context = &domain.context;
        if pair.is_none() && !context.has_bind_mw() {
            return Err(VerbError::new("ibv_bind_mw", libc::EOPNOTSUPP));
        }
        let windows = context.promises().windows;
        let barrier = windows.are_barriers();
        let revocable = barrier && (pair.is_some() || windows == Windows::Both);
        // SAFETY: the domain is alive.
        let raw = ObjectPtr(unsafe { context.provider.alloc_mw(domain.raw, kind) }?);
        let pair = pair.map(|pair| pair.as_ptr().addr());
        let (ended, guard, domain) = (AtomicBool::new(false), Mutex::new(()), Arc::clone(domain));
        Ok(Arc::new(Self { raw, ended, guard, pair, barrier, revocable, domain }))
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device has freed it.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The device's window, for a bind of type 2, which names it.
    pub(crate) fn raw(&self) -> *mut sys::ibv_mw {
        self.raw.0.as_ptr()
    }

    /// The key as the device has it; `None` once the window has ended. Of type 2, for a handle that is being made only.
    fn device_rkey(&self) -> Option<u32> {
        let _guard = self.lock();
        // SAFETY: alive (0), and nobody writes the key now (2): the guard is held, or the handle is here, being made.
        (!self.has_ended()).then(|| unsafe { (*self.raw.0.as_ptr()).rkey })
    }

    /// Sets the key by which the provider names a window of type 2 (`ibv_inc_rkey(3)`). For `begin` only, whose caller
    /// has seen that the window is alive, and has the pair that would end it.
    fn set_device_rkey(&self, rkey: u32) {
        // SAFETY: alive (0). Only the handle of a window of type 2 writes its key (2): the provider does not, and the
        // only handle is the one that calls this.
        unsafe { (*self.raw.0.as_ptr()).rkey = rkey };
    }

    /// Posts a bind of a window of type 1, or its end.
    ///
    /// # Safety
    ///
    /// `ibv_bind_mw(3)`: the window is alive, the pair too and in a state that sends, and nobody else posts to the
    /// pair.
    pub(crate) unsafe fn bind(&self, pair: NonNull<sys::ibv_qp>, mut bind: sys::ibv_mw_bind) -> Result<(), VerbError> {
        // The provider writes the new key to the window after it has posted. By then another thread may have polled the
        // completion, and would free the window: the guard makes it wait.
        let _guard = self.lock();
        // SAFETY: the caller's promise.
        match unsafe { sys::inline::ibv_bind_mw(pair.as_ptr(), self.raw.0.as_ptr(), &raw mut bind) } {
            0 => Ok(()),
            errno => Err(VerbError::new("ibv_bind_mw", errno.wrapping_abs())),
        }
    }

    /// Frees it, bound or not. Does nothing the second time.
    pub(crate) fn dealloc(&self) -> Result<(), VerbError> {
        let _guard = self.lock();
        if !self.has_ended() {
            // SAFETY: alive (0), and no verb uses it: those that write to it hold the guard (2). Those that read it
            // have returned (ASSUMPTION): whoever calls this has the handle back, or is the pair, which posts no more.
            unsafe { self.domain.context.provider.dealloc_mw(self.raw.0) }?;
            self.ended.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// A window and the memory behind it, in the form in which a ledger holds them.
///
/// The alignment leaves room for the ledger's tag.
#[repr(align(64))]
pub(crate) struct WindowInner {
    core: Arc<WindowCore>,
    /// For type 2: the key that it has, or will have when the bind in flight is done.
    rkey: u32,
    rights: u32,
    /// # Invariants
    ///
    /// 0. The only reference to the part, whose region may be bound to. `Some` from before the window is bound until it
    ///    is known that no peer reaches the part through it.
    part: Option<Part>,
}

/// What a bind tells the device.
pub(crate) struct Binding {
    pub(crate) core: Arc<WindowCore>,
    pub(crate) rkey: u32,
    pub(crate) info: sys::ibv_mw_bind_info,
}

impl WindowInner {
    pub(super) fn new(core: Arc<WindowCore>) -> Box<Self> {
        let rkey = core.device_rkey().unwrap_or(0);
        Box::new(Self { core, rkey, rights: 0, part: None })
    }

    pub(crate) fn is_type_1(&self) -> bool {
        self.core.pair.is_none()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.core.has_ended()
    }

    pub(crate) fn core(&self) -> Arc<WindowCore> {
        Arc::clone(&self.core)
    }

    pub(crate) fn domain(&self) -> DomainId {
        self.core.domain.id()
    }

    /// Whether a pair may post requests about it.
    pub(crate) fn serves(&self, pair: NonNull<sys::ibv_qp>) -> bool {
        self.core.pair.is_none_or(|own| own == pair.as_ptr().addr())
    }

    pub(crate) fn is_barrier(&self) -> bool {
        self.core.barrier
    }

    pub(crate) fn is_revocable(&self) -> bool {
        self.core.revocable
    }

    /// The rights with which it was bound last.
    pub(super) fn rights(&self) -> u32 {
        self.rights
    }

    /// Takes `memory` to be bound over, with the next key.
    pub(crate) fn begin<B>(&mut self, memory: Bindable<B>, rights: u32) -> Binding {
        let part = memory.into_part();
        let info = sys::ibv_mw_bind_info {
            mr: part.region().raw(),
            addr: part.device_addr(),
            length: part.capacity() as u64,
            mw_access_flags: rights,
        };
        // The provider names the window by its old key, which for type 2 the caller keeps (`ibv_inc_rkey(3)`).
        if !self.is_type_1() {
            self.core.set_device_rkey(self.rkey);
            self.rkey = sys::inline::ibv_inc_rkey(self.rkey);
        }
        (self.part, self.rights) = (Some(part), rights);
        Binding { core: Arc::clone(&self.core), rkey: self.rkey, info }
    }

    /// Undoes [`begin`](Self::begin) for a bind that was not posted.
    pub(crate) fn undo<B>(&mut self) -> Option<Bindable<B>> {
        if !self.is_type_1() {
            // The low 8 bits are those that `ibv_inc_rkey` counts up.
            self.rkey = self.rkey & !0xff | self.rkey.wrapping_sub(1) & 0xff;
        }
        self.take_memory()
    }

    /// The memory behind it, for a caller who knows that the window is not bound any more.
    pub(crate) fn take_memory<B>(&mut self) -> Option<Bindable<B>> {
        self.part.take().map(Bindable::of_window)
    }

    /// The key of the binding; 0 once a window of type 1 has ended.
    pub(crate) fn rkey(&self) -> Rkey {
        Rkey(if self.is_type_1() { self.core.device_rkey().unwrap_or(0) } else { self.rkey })
    }

    pub(super) fn part(&self) -> Option<&Descriptor> {
        self.part.as_deref()
    }

    /// Frees the window. The memory behind it, if any, is not reached through it any more.
    pub(super) fn dealloc(&mut self) -> Result<Option<Part>, VerbError> {
        self.core.dealloc()?;
        Ok(self.part.take())
    }

    /// The pointer. Whoever has it owns the window.
    pub(crate) fn into_raw(self: Box<Self>) -> NonNull<Self> {
        NonNull::from(Box::leak(self))
    }

    /// The window again.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw), and is used once.
    pub(crate) unsafe fn from_raw(raw: NonNull<Self>) -> Box<Self> {
        // SAFETY: from a box (caller).
        unsafe { Box::from_raw(raw.as_ptr()) }
    }

    /// Drops a window.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw), and is used once.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn drop_raw(raw: NonNull<Self>) {
        // SAFETY: the caller's promise.
        drop(unsafe { Self::from_raw(raw) });
    }
}

impl Drop for WindowInner {
    fn drop(&mut self) {
        if let Err(error) = self.core.dealloc() {
            // Peers may still reach the memory, so its region stays registered with the window.
            mem::forget(self.part.take());
            mem::forget(Arc::clone(&self.core));
            note_leak("a memory window", error);
        }
    }
}
