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

/// A pointer to a protection domain, and its provider. It does not keep the domain alive.
#[derive(Clone, Copy)]
pub(crate) struct DomainPtr {
    pub(crate) provider: &'static dyn Provider,
    pub(crate) pd: NonNull<sys::ibv_pd>,
}

/// The memory that a region will cover.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Memory of this process. Peers address the first byte as `iova`; if that is `None`, by its address in this
    /// process.
    Mapped { first: *mut u8, iova: Option<u64> },
    /// Memory of the dma-buf `fd`, from `offset`. Peers address the first byte as `iova`.
    Exported { fd: RawFd, offset: u64, iova: u64 },
}

/// A registered memory region. Dropping it does not deregister it: the memory stays registered.
pub(crate) struct Region {
    /// # Invariants
    ///
    /// 0. The region came from `provider`, and is registered. Nobody else deregisters it.
    raw: ObjectPtr<sys::ibv_mr>,
    provider: &'static dyn Provider,
}

impl Region {
    /// `ibv_reg_mr`, `ibv_reg_mr_iova` or `ibv_reg_dmabuf_mr`.
    ///
    /// # Safety
    ///
    /// Until the region has [ended](Self::end), the domain is alive, and the `len` bytes are valid memory, which the
    /// device and peers may access as `rights` says. The descriptor in `place`, if any, is open during this call.
    pub(crate) unsafe fn register(
        DomainPtr { provider, pd }: DomainPtr,
        place: Place,
        len: usize,
        rights: sys::ibv_access_flags,
    ) -> Result<Self, VerbError> {
        let raw = match place {
            // SAFETY: the domain is alive and the memory is valid until the region has ended (caller).
            Place::Mapped { first, iova: None } => unsafe { provider.reg_mr(pd, first, len, rights) },
            // SAFETY: as above.
            Place::Mapped { first, iova: Some(iova) } => unsafe { provider.reg_mr_iova(pd, first, len, iova, rights) },
            // SAFETY: as above; the descriptor is open (caller), and the registration then keeps the dma-buf alive by
            // itself.
            Place::Exported { fd, offset, iova } => unsafe {
                provider.reg_dmabuf_mr(pd, offset, len, iova, fd, rights)
            },
        }?;
        Ok(Self { raw: ObjectPtr(raw), provider })
    }

    /// The local and the remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region is registered (0), so its struct is alive; providers write the keys only while they
        // register.
        let mr = unsafe { self.raw.0.as_ref() };
        (mr.lkey, mr.rkey)
    }

    /// The pointer to the region, for requests that name it.
    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_mr {
        self.raw.0.as_ptr()
    }

    /// `ibv_dereg_mr`. After `Ok`, no peer can access the memory by its keys. After `Err`, the region is still
    /// registered.
    pub(crate) fn end(self) -> Result<(), (Self, VerbError)> {
        // SAFETY: the region is registered, and nobody else deregisters it (0).
        unsafe { self.provider.dereg_mr(self.raw.0) }.map_err(|error| (self, error))
    }
}

/// A memory window, bound or not. Dropping it does not free it.
pub(crate) struct MemoryWindow {
    raw: ObjectPtr<sys::ibv_mw>,
    /// # Invariants
    ///
    /// 0. True while `raw`, which came from `provider`, is alive. The window is freed, and its struct is read and
    ///    written, only while this lock is held.
    is_alive: Mutex<bool>,
    /// 1. The provider's function that binds a window of type 1; `None` for a window of type 2.
    bind_mw: Option<BindMw>,
    provider: &'static dyn Provider,
}

impl MemoryWindow {
    /// `ibv_alloc_mw`: a window of type 1 if `bind_mw` is given, otherwise of type 2.
    ///
    /// # Safety
    ///
    /// The domain stays alive until the window has [ended](Self::end). `bind_mw` is a function of its provider.
    pub(crate) unsafe fn alloc(
        DomainPtr { provider, pd }: DomainPtr,
        bind_mw: Option<BindMw>,
    ) -> Result<Self, VerbError> {
        let kind = if bind_mw.is_some() { ibv_mw_type::IBV_MW_TYPE_1 } else { ibv_mw_type::IBV_MW_TYPE_2 };
        // SAFETY: the domain is alive (caller).
        let raw = unsafe { provider.alloc_mw(pd, kind) }?;
        Ok(Self { raw: ObjectPtr(raw), is_alive: Mutex::new(true), bind_mw, provider })
    }

    /// Holds the window, so that nobody frees it meanwhile; `None` once the window has ended.
    pub(crate) fn hold(&self) -> Option<HeldWindow<'_>> {
        let alive = lock(&self.is_alive);
        alive.then_some(HeldWindow { window: self, _alive: alive })
    }

    /// `ibv_dealloc_mw`; the window may be bound or not. Waits until nobody [holds](Self::hold) the window, so that no
    /// verb uses it. The second call does nothing.
    pub(crate) fn end(&self) -> Result<(), VerbError> {
        let mut is_alive = lock(&self.is_alive);
        if *is_alive {
            // SAFETY: the window is alive, and nobody else uses it while the lock is held (0).
            unsafe { self.provider.dealloc_mw(self.raw.0) }?;
            *is_alive = false;
        }
        Ok(())
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
            errno => Err(VerbError::new("ibv_bind_mw", errno.wrapping_abs())),
        }
    }
}
