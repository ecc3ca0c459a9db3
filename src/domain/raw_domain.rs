//! Owned protection domains.
#![allow(unsafe_code, reason = "calls verbs on the protection domain that it owns")]

use super::brand::Claim;
use super::{Blocks, Numbers};
use crate::device::ContextInner;
use crate::sys;
use crate::verb_error::{VerbError, note_leak};
use std::{mem, ptr, ptr::NonNull, sync::Arc};

/// An owned protection domain, which all objects of the domain share. Dropping it frees the domain.
pub(crate) struct DomainInner {
    /// # Invariants
    ///
    /// 0. Came from the provider of the context, and is alive until this is dropped.
    pub(crate) raw: NonNull<sys::ibv_pd>,
    /// The name of the domain, which becomes free only after the device has freed the domain.
    claim: Option<Claim>,
    /// The numbers of its shared receive queues.
    pub(crate) numbers: Arc<Numbers>,
    /// The memory of its ledgers.
    pub(crate) ledgers: Arc<Blocks>,
    pub(crate) context: Arc<ContextInner>,
}

// SAFETY: verbs on one protection domain may be called from any thread (see `ContextInner`).
unsafe impl Send for DomainInner {}
// SAFETY: as for `Send`; verbs may also be called from several threads at once.
unsafe impl Sync for DomainInner {}

/// Names a domain as long as an object of it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct DomainId(usize);

#[cfg(all(test, loom))]
impl DomainId {
    pub(crate) const NONE: Self = Self(0);
}

impl DomainInner {
    /// The name that tells this domain from others.
    #[inline(always)]
    pub(crate) fn id(&self) -> DomainId {
        DomainId(ptr::from_ref(self).addr())
    }

    /// `ibv_alloc_pd`.
    pub(super) fn new(context: &Arc<ContextInner>, claim: Option<Claim>) -> Result<Arc<Self>, VerbError> {
        // SAFETY: the context is open as long as this function holds it.
        let raw = unsafe { context.provider.alloc_pd(context.raw) }?;
        Ok(Arc::new(Self {
            raw,
            claim,
            numbers: Arc::default(),
            ledgers: Arc::default(),
            context: Arc::clone(context),
        }))
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        // SAFETY: alive (0), and nobody else frees it. Objects of the domain hold a reference to this, so none is left.
        if let Err(error) = unsafe { self.context.provider.dealloc_pd(self.raw) } {
            // The device still has the domain, so its name stays taken and its device open.
            mem::forget(self.claim.take());
            mem::forget(Arc::clone(&self.context));
            note_leak("a protection domain", error);
        }
    }
}
