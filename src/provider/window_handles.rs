//! Owned handles of memory windows, with verbs that are safe to call, as in [`handles`](super::handles).
//!
//! ASSUMPTION: a provider reads the `ibv_mw` of a bind while the bind is posted, before it can complete, and not later.
#![allow(unsafe_code, reason = "calls verbs on the window that the handle owns")]

use super::handles::{BindMw, Domain, ObjectPtr};
use super::reviewed::Windows;
use crate::sync::lock;
use crate::sys::{self, ibv_mw_type, ibv_wc_status};
use crate::verb_error::VerbError;
use std::mem;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

/// A memory window, bound or not. Dropping a window that has not [ended](Self::end) leaks it, with its domain.
pub(crate) struct MemoryWindow {
    raw: ObjectPtr<sys::ibv_mw>,
    /// # Invariants
    ///
    /// 0. True while `raw`, which came from the provider of `domain`, is alive. The window is freed, and its struct is
    ///    read and written, only while this lock is held.
    is_alive: Mutex<bool>,
    /// 1. The provider's function that binds a window of type 1; `None` for a window of type 2.
    bind_mw: Option<BindMw>,
    /// Whether the end of a window also ends the accesses of peers that had begun.
    is_barrier: bool,
    /// 2. Keeps alive the domain that the window was made on.
    domain: Arc<Domain>,
}

/// Proof that a request has succeeded.
pub(crate) struct Succeeded(());

impl Succeeded {
    /// The proof, if this is the status of a request that has succeeded.
    pub(crate) fn of(status: ibv_wc_status) -> Option<Self> {
        (status == ibv_wc_status::IBV_WC_SUCCESS).then_some(Self(()))
    }
}

/// Proof that a request was not posted.
pub(crate) struct NotPosted(());

impl NotPosted {
    /// # Safety
    ///
    /// This proof is used for one window, and the request about that window was not posted.
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

/// Proof that the device has freed a window, and that its windows are barriers.
#[derive(Debug)]
pub(crate) struct FreedBarrier(());

/// Proof that no peer reaches memory through a window any more. It is used for the memory behind that window only.
pub(crate) enum Unreached {
    /// The request that ended the window has succeeded. It is posted only where windows are barriers.
    Revoked(Succeeded),
    /// The request to bind the window was not posted.
    NotPosted(NotPosted),
    Freed(FreedBarrier),
}

impl MemoryWindow {
    /// `ibv_alloc_mw`. `windows` is what the provider promises. `EOPNOTSUPP`: the provider has no function that binds
    /// windows of type 1.
    pub(crate) fn alloc(domain: &Arc<Domain>, kind: ibv_mw_type, windows: Windows) -> Result<Self, VerbError> {
        let bind_mw = if kind == ibv_mw_type::IBV_MW_TYPE_1 {
            let function = domain.needs().bind_mw();
            Some(function.ok_or(VerbError::new("ibv_bind_mw", libc::EOPNOTSUPP))?)
        } else {
            None
        };
        if !domain.is_alive() {
            return Err(VerbError::new("ibv_alloc_mw", libc::EIO));
        }
        // SAFETY: the domain is alive (checked above). It stays alive during this call: `Handle::end` needs `&mut`, and
        // `domain` is borrowed here.
        let raw = unsafe { domain.needs().provider.alloc_mw(domain.raw(), kind) }?;
        let (raw, is_alive, is_barrier) = (ObjectPtr(raw), Mutex::new(true), windows.are_barriers());
        Ok(Self { raw, is_alive, bind_mw, is_barrier, domain: Arc::clone(domain) })
    }

    /// Holds the window, so that nobody frees it meanwhile; `None` once the window has ended.
    pub(crate) fn hold(&self) -> Option<HeldWindow<'_>> {
        let alive = lock(&self.is_alive);
        alive.then_some(HeldWindow { window: self, _alive: alive })
    }

    /// `ibv_dealloc_mw`; the window may be bound or not. Waits until nobody [holds](Self::hold) the window, so that no
    /// verb uses it. The second call does nothing. Returns the proof that no peer reaches memory through the window, if
    /// windows are barriers.
    pub(crate) fn end(&self) -> Result<Option<FreedBarrier>, VerbError> {
        let mut is_alive = lock(&self.is_alive);
        if *is_alive {
            // SAFETY: the window is alive, and nobody else uses it while the lock is held (0).
            unsafe { self.domain.needs().provider.dealloc_mw(self.raw.0) }?;
            *is_alive = false;
        }
        Ok(self.is_barrier.then_some(FreedBarrier(())))
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if self.hold().is_some() {
            mem::forget(Arc::clone(&self.domain));
        }
    }
}

/// A window that is alive, and that nobody frees while this value exists.
pub(crate) struct HeldWindow<'window> {
    window: &'window MemoryWindow,
    _alive: MutexGuard<'window, bool>,
}

impl HeldWindow<'_> {
    /// The pointer to the window, for a request that names it. Post the request while this value exists.
    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_mw {
        self.window.raw.0.as_ptr()
    }

    fn object(&mut self) -> &mut sys::ibv_mw {
        // SAFETY: the window is alive, and nobody else uses its struct while the lock is held (0).
        unsafe { &mut *self.as_ptr() }
    }

    /// The key in the provider's struct.
    pub(crate) fn rkey(&mut self) -> u32 {
        self.object().rkey
    }

    /// Sets the key in the provider's struct, from which the next bind of a window of type 2 starts.
    pub(crate) fn set_rkey(&mut self, rkey: u32) {
        self.object().rkey = rkey;
    }

    /// `ibv_bind_mw`: posts a bind of a window of type 1. A `bind` of length 0 unbinds the window.
    ///
    /// The provider writes the new key after it has posted the request. By then another thread may have polled the
    /// completion and want to free the window; the lock makes that thread wait until this call returns.
    ///
    /// # Safety
    ///
    /// `ibv_bind_mw(3)`: the pair is alive and in a state that sends, and nobody else posts to it. The region in
    /// `bind`, if there is one, is of the window's domain, and stays registered until the request has ended and the
    /// window is not bound to it any more.
    pub(crate) unsafe fn bind(self, pair: NonNull<sys::ibv_qp>, mut bind: sys::ibv_mw_bind) -> Result<(), VerbError> {
        let Some(bind_mw) = self.window.bind_mw else { return Err(VerbError::new("ibv_bind_mw", libc::EINVAL)) };
        // SAFETY: the pair and the region are as `ibv_bind_mw(3)` demands (caller). The window is alive while it is
        // held (0), and of type 1 (1).
        match unsafe { bind_mw(pair.as_ptr(), self.as_ptr(), &raw mut bind) } {
            0 => Ok(()),
            failed => Err(VerbError::of_data_path("ibv_bind_mw", failed)),
        }
    }
}
