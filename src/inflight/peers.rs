//! The address handles that datagrams in flight go by.
#![allow(unsafe_code, reason = "owns address handles")]

use super::work_id::WorkId;
use crate::domain::{DomainId, DomainInner};
use crate::error::{VerbError, note_leak};
use crate::sys;
use std::cell::UnsafeCell;
use std::{mem, ptr::NonNull, sync::Arc};

/// An address handle without its brand.
pub(crate) struct AhInner {
    /// # Invariants
    ///
    /// 0. Came from the domain's provider, and is alive until this is dropped.
    raw: NonNull<sys::ibv_ah>,
    domain: Arc<DomainInner>,
}

// SAFETY: an address handle is immutable; verbs may name it from any thread.
unsafe impl Send for AhInner {}
// SAFETY: as above.
unsafe impl Sync for AhInner {}

impl AhInner {
    pub(crate) fn create(domain: &Arc<DomainInner>, attributes: &mut sys::ibv_ah_attr) -> Result<Arc<Self>, VerbError> {
        // SAFETY: the domain is alive as long as we hold it.
        let raw = unsafe { domain.context.provider.create_ah(domain.raw, attributes) }?;
        Ok(Arc::new(Self { raw, domain: Arc::clone(domain) }))
    }

    pub(crate) fn domain(&self) -> DomainId {
        self.domain.id()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AhInner {
    fn drop(&mut self) {
        // SAFETY: alive (0); what is in flight by it holds a reference.
        if let Err(error) = unsafe { self.domain.context.provider.destroy_ah(self.raw) } {
            mem::forget(Arc::clone(&self.domain));
            note_leak("an address handle", error);
        }
    }
}

/// The address handles of the requests that a queue of datagrams may have in flight, by index of the request. One is kept
/// until its place is taken by a later request, whose own place in the ledger was free: so the earlier one has completed.
pub(crate) struct Peers {
    /// # Invariants
    ///
    /// 0. A power of two of them, touched only by the one who posts.
    by_index: Box<[UnsafeCell<Option<Arc<AhInner>>>]>,
}

// SAFETY: touched by one thread at a time (0), and dropped by the last owner.
unsafe impl Send for Peers {}
// SAFETY: as above.
unsafe impl Sync for Peers {}

impl Peers {
    pub(crate) fn new(depth: u32) -> Arc<Self> {
        Arc::new(Self { by_index: (0..depth.next_power_of_two()).map(|_| UnsafeCell::new(None)).collect() })
    }

    /// Keeps `peer` for the request with this id.
    ///
    /// # Safety
    ///
    /// The caller is the only one who posts, and the place is free in the ledger.
    pub(crate) unsafe fn keep(&self, id: WorkId, peer: &Arc<AhInner>) {
        let place = id.index() as usize & (self.by_index.len() - 1);
        if let Some(place) = self.by_index.get(place) {
            // SAFETY: nobody else touches it (0, caller).
            drop(unsafe { (*place.get()).replace(Arc::clone(peer)) });
        }
    }

    /// Lets go of all.
    ///
    /// # Safety
    ///
    /// The pair is destroyed, and nobody can post to it any more.
    pub(crate) unsafe fn clear(&self) {
        for place in &self.by_index {
            // SAFETY: nobody else touches it (0, caller).
            drop(unsafe { (*place.get()).take() });
        }
    }
}
