//! Address handles, and those that datagrams in flight use.
#![allow(unsafe_code, reason = "owns address handles")]

use super::work_id::WorkId;
use crate::domain::{DomainId, DomainInner};
use crate::sys;
use crate::verb_error::{VerbError, note_leak};
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
// SAFETY: shared access names the handle, and changes nothing.
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
        // SAFETY: alive (0); requests in flight that use it hold a reference.
        if let Err(error) = unsafe { self.domain.context.provider.destroy_ah(self.raw) } {
            mem::forget(Arc::clone(&self.domain));
            note_leak("an address handle", error);
        }
    }
}

/// The address handles of the requests that a datagram queue may have in flight, by the index of the request. A handle
/// is kept until a later request takes its place. By then the earlier request has completed, since its slot in the
/// ledger was free.
pub(crate) struct Peers {
    /// # Invariants
    ///
    /// 0. A power of two of them. Only the side that posts touches them.
    by_index: Box<[UnsafeCell<Option<Arc<AhInner>>>]>,
}

// SAFETY: one thread at a time touches the places (0), and the last owner drops them.
unsafe impl Send for Peers {}
// SAFETY: shared access touches no place without the promise of `keep` or `clear`.
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

    /// Lets go of all handles.
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
