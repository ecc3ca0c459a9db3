//! Owned protection domains.
#![forbid(unsafe_code)]

use super::brand::Claim;
use super::{Blocks, Numbers};
use crate::device::ContextInner;
use crate::provider::handles;
use crate::sys;
use crate::verb_error::{VerbError, note_leak};
use std::{mem, ptr, ptr::NonNull, sync::Arc};

/// An owned protection domain, which all objects of the domain share. Dropping it frees the domain.
pub(crate) struct DomainInner {
    /// The device's domain. The handle of each object in the domain holds it too, but the object drops its handle
    /// before its reference to this.
    handle: Arc<handles::Domain>,
    /// The name of the domain, which becomes free only after the device has freed the domain.
    claim: Option<Claim>,
    /// The numbers of its shared receive queues.
    pub(crate) numbers: Arc<Numbers>,
    /// The memory of its ledgers.
    pub(crate) ledgers: Arc<Blocks>,
    pub(crate) context: Arc<ContextInner>,
}

/// Identifies a domain while an object of the domain lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct DomainId(usize);

#[cfg(all(test, loom))]
impl DomainId {
    pub(crate) const NONE: Self = Self(0);
}

impl DomainInner {
    /// The id that tells this domain from others.
    #[inline(always)]
    pub(crate) fn id(&self) -> DomainId {
        DomainId(ptr::from_ref(self).addr())
    }

    /// `ibv_alloc_pd`.
    pub(super) fn new(context: &Arc<ContextInner>, claim: Option<Claim>) -> Result<Arc<Self>, VerbError> {
        let handle = Arc::new(handles::Domain::alloc(context.open())?);
        Ok(Arc::new(Self {
            handle,
            claim,
            numbers: Arc::default(),
            ledgers: Arc::default(),
            context: Arc::clone(context),
        }))
    }

    /// The handle of the device's domain. Whatever is made in the domain holds it, too.
    pub(crate) fn handle(&self) -> &Arc<handles::Domain> {
        &self.handle
    }

    /// The device's domain, to name it in verbs. It is alive as long as this is held.
    pub(crate) fn raw(&self) -> NonNull<sys::ibv_pd> {
        self.handle.raw()
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        // Each object of the domain holds a reference to this `DomainInner`, and drops its clone of `handle` before
        // that reference. So no object and no clone of `handle` is left.
        if let Err(error) = handles::Domain::end_shared(&mut self.handle, "ibv_dealloc_pd") {
            // The device still has the domain. The claim to its brand is leaked, so that no other domain gets the
            // brand. A reference to the context is leaked, so that the device stays open.
            mem::forget(self.claim.take());
            mem::forget(Arc::clone(&self.context));
            note_leak("a protection domain", error);
        }
    }
}
