//! Owned handles of memory regions and memory windows, with verbs that are safe to call, as in
//! [`handles`](super::handles).
//!
//! ASSUMPTION: a provider reads the `ibv_mw` of a bind while the bind is posted, and not later.
#![allow(unsafe_code, reason = "calls verbs on the object that the handle owns")]

use super::Provider;
use super::handles::{BindMw, ObjectPtr};
use crate::sync::lock;
use crate::sys::{self, ibv_mw_type};
use crate::verb_error::VerbError;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

/// A protection domain and its provider. Having it allows nothing: it does not keep the domain alive.
#[derive(Clone, Copy)]
pub(crate) struct DomainPtr {
    pub(crate) provider: &'static dyn Provider,
    pub(crate) pd: NonNull<sys::ibv_pd>,
}

/// The memory that a region is to be over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Memory of this process. Peers name the first byte by `iova`, or by its address if that is `None`.
    Mapped { first: *mut u8, iova: Option<u64> },
    /// Memory of the dma-buf `fd`, from `offset`. Peers name the first byte by `iova`.
    Exported { fd: RawFd, offset: u64, iova: u64 },
}

/// A registered memory region. Dropping it does not end it: the memory then stays registered, which is safe.
pub(crate) struct Region {
    /// # Invariants
    ///
    /// 0. Came from `provider`, and is registered. Nobody else ends it.
    raw: ObjectPtr<sys::ibv_mr>,
    provider: &'static dyn Provider,
}

impl Region {
    /// `ibv_reg_mr`, `ibv_reg_mr_iova` or `ibv_reg_dmabuf_mr`.
    ///
    /// # Safety
    ///
    /// Until the region has [ended](Self::end), the domain is alive, and the `len` bytes stay where they are and may be
    /// accessed by the device and by peers, as `rights` says. A descriptor is open during this call.
    pub(crate) unsafe fn register(
        DomainPtr { provider, pd }: DomainPtr,
        place: Place,
        len: usize,
        rights: sys::ibv_access_flags,
    ) -> Result<Self, VerbError> {
        let raw = match place {
            // SAFETY: the caller's promise.
            Place::Mapped { first, iova: None } => unsafe { provider.reg_mr(pd, first, len, rights) },
            // SAFETY: the caller's promise.
            Place::Mapped { first, iova: Some(iova) } => unsafe { provider.reg_mr_iova(pd, first, len, iova, rights) },
            // SAFETY: the caller's promise. The registration keeps the dma-buf itself.
            Place::Exported { fd, offset, iova } => unsafe {
                provider.reg_dmabuf_mr(pd, offset, len, iova, fd, rights)
            },
        }?;
        Ok(Self { raw: ObjectPtr(raw), provider })
    }

    /// The local and the remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: registered (0), so the struct is there; providers write the keys only while they register.
        let mr = unsafe { self.raw.0.as_ref() };
        (mr.lkey, mr.rkey)
    }

    /// The device's object, for requests that name it.
    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_mr {
        self.raw.0.as_ptr()
    }

    /// `ibv_dereg_mr`. After `Ok` no peer reaches the memory by the keys. After `Err` the region is still registered.
    pub(crate) fn end(self) -> Result<(), (Self, VerbError)> {
        // SAFETY: registered, and nobody else ends it (0).
        unsafe { self.provider.dereg_mr(self.raw.0) }.map_err(|error| (self, error))
    }
}

/// A memory window, bound or not. Dropping it does not free it.
pub(crate) struct MemoryWindow {
    raw: ObjectPtr<sys::ibv_mw>,
    /// # Invariants
    ///
    /// 0. Whether `raw`, which came from `provider`, is alive. It is freed, and its struct is read and written, only
    ///    while this is locked.
    is_alive: Mutex<bool>,
    /// 1. For a window of type 1 the provider's function that binds it; `None` for one of type 2.
    bind_mw: Option<BindMw>,
    provider: &'static dyn Provider,
}

impl MemoryWindow {
    /// `ibv_alloc_mw`: of type 1 if there is a function that binds such a window, else of type 2.
    ///
    /// # Safety
    ///
    /// The domain is alive until the window has [ended](Self::end), or else for ever. `bind_mw` is of its provider.
    pub(crate) unsafe fn alloc(
        DomainPtr { provider, pd }: DomainPtr,
        bind_mw: Option<BindMw>,
    ) -> Result<Self, VerbError> {
        let kind = if bind_mw.is_some() { ibv_mw_type::IBV_MW_TYPE_1 } else { ibv_mw_type::IBV_MW_TYPE_2 };
        // SAFETY: the caller's promise.
        let raw = unsafe { provider.alloc_mw(pd, kind) }?;
        Ok(Self { raw: ObjectPtr(raw), is_alive: Mutex::new(true), bind_mw, provider })
    }

    /// The window, which nobody frees as long as the answer is held; `None` once it has ended.
    pub(crate) fn hold(&self) -> Option<HeldWindow<'_>> {
        let alive = lock(&self.is_alive);
        alive.then_some(HeldWindow { window: self, _alive: alive })
    }

    /// `ibv_dealloc_mw`, bound or not. Waits for who [holds](Self::hold) the window, so no verb uses it. Does nothing
    /// the second time.
    pub(crate) fn end(&self) -> Result<(), VerbError> {
        let mut is_alive = lock(&self.is_alive);
        if *is_alive {
            // SAFETY: alive, and nobody uses it while this is locked (0).
            unsafe { self.provider.dealloc_mw(self.raw.0) }?;
            *is_alive = false;
        }
        Ok(())
    }
}

/// A window that is alive, and that nobody frees meanwhile.
pub(crate) struct HeldWindow<'window> {
    window: &'window MemoryWindow,
    _alive: MutexGuard<'window, bool>,
}

impl HeldWindow<'_> {
    /// The device's object, for a request that names it, to be posted while this is held.
    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_mw {
        self.window.raw.0.as_ptr()
    }

    fn object(&mut self) -> &mut sys::ibv_mw {
        // SAFETY: alive, and nobody else uses the struct as long as the lock is held (0).
        unsafe { &mut *self.as_ptr() }
    }

    /// The key as the device has it.
    pub(crate) fn rkey(&mut self) -> u32 {
        self.object().rkey
    }

    /// Sets the key by which the provider names a window of type 2 when it binds the window again.
    pub(crate) fn set_rkey(&mut self, rkey: u32) {
        self.object().rkey = rkey;
    }

    /// `ibv_bind_mw`: posts a bind of a window of type 1, or its end if `bind` is over no bytes.
    ///
    /// The provider writes the new key after it has posted. By then another thread may have polled the completion, and
    /// would free the window: it waits until this returns.
    ///
    /// # Safety
    ///
    /// `ibv_bind_mw(3)`: the pair is alive and in a state that sends, and nobody else posts to it. The region in
    /// `bind`, if there is one, is of the window's domain, and stays registered until the request has ended and the
    /// window is not bound to it any more.
    pub(crate) unsafe fn bind(self, pair: NonNull<sys::ibv_qp>, mut bind: sys::ibv_mw_bind) -> Result<(), VerbError> {
        let Some(bind_mw) = self.window.bind_mw else { return Err(VerbError::new("ibv_bind_mw", libc::EINVAL)) };
        // SAFETY: the caller's promise. The window is alive while this is held (0), and of type 1 (1).
        match unsafe { bind_mw(pair.as_ptr(), self.as_ptr(), &raw mut bind) } {
            0 => Ok(()),
            errno => Err(VerbError::new("ibv_bind_mw", errno.wrapping_abs())),
        }
    }
}
