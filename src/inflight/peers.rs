//! Address handles, the recipients of datagrams, and the list of handles that datagrams in flight use.
#![forbid(unsafe_code)]

use super::work_id::WorkId;
use crate::domain::{DomainId, DomainInner};
use crate::provider::handles;
use crate::sync::lock;
use crate::sys;
use crate::types::{Qkey, Qpn};
use crate::verb_error::{VerbError, note_leak};
use std::mem;
use std::sync::{Arc, Mutex, Weak};

/// An address handle without its brand. Requests in flight that use it hold a reference.
pub(crate) struct AhInner {
    handle: handles::Address,
    domain: Arc<DomainInner>,
}

impl AhInner {
    pub(crate) fn create(domain: &Arc<DomainInner>, attributes: &mut sys::ibv_ah_attr) -> Result<Arc<Self>, VerbError> {
        let handle = handles::Address::create(domain.handle(), attributes)?;
        Ok(Arc::new(Self { handle, domain: Arc::clone(domain) }))
    }

    pub(crate) fn domain(&self) -> DomainId {
        self.domain.id()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_ah {
        self.handle.raw().as_ptr()
    }
}

impl Drop for AhInner {
    fn drop(&mut self) {
        if let Err(error) = self.handle.end() {
            mem::forget(Arc::clone(&self.domain));
            note_leak("an address handle", error);
        }
    }
}

/// The recipient of a datagram, without its brand.
#[derive(Clone, Copy)]
#[allow(unnameable_types, missing_debug_implementations, reason = "in a sealed trait")]
pub struct To<'r> {
    pub(crate) handle: &'r Arc<AhInner>,
    pub(crate) queue_pair: Qpn,
    pub(crate) qkey: Qkey,
}

/// Address handles, by the index of the request that uses them. The length is a power of two.
type ByIndex = Box<[Option<Arc<AhInner>>]>;

/// The address handles of the requests that a datagram queue may have in flight. The side that posts owns them.
///
/// A handle is kept until a later request takes its place. By then the earlier request has completed: otherwise its
/// slot in the ledger would not be free. If the queue is dropped before its pair is destroyed, the handles move to the
/// pair, into [`Parked`].
pub(crate) struct Peers {
    by_index: ByIndex,
    pair: Weak<Mutex<Vec<ByIndex>>>,
}

/// The address handles of send queues that are gone. They are kept until the pair is destroyed.
#[derive(Default)]
pub(crate) struct Parked(Arc<Mutex<Vec<ByIndex>>>);

/// Empty places for at least `depth` requests. Their number is a power of two.
fn places(depth: u32) -> ByIndex {
    (0..depth.next_power_of_two()).map(|_| None).collect()
}

impl Peers {
    /// The list for a queue of `depth` requests. If the queue is dropped before `pair` is destroyed, the handles move
    /// to `pair`.
    pub(crate) fn new(depth: u32, pair: &Parked) -> Self {
        Self { by_index: places(depth), pair: Arc::downgrade(&pair.0) }
    }

    /// Makes room for the requests of a ledger of this depth. If the list must grow, its handles move to the pair.
    pub(crate) fn make_room(&mut self, depth: u32) {
        if self.by_index.len() < depth as usize {
            self.park(depth);
        }
    }

    /// Keeps `peer` for the request with this id.
    pub(crate) fn keep(&mut self, id: WorkId, peer: &Arc<AhInner>) {
        let place = id.index() as usize & (self.by_index.len() - 1);
        if let Some(place) = self.by_index.get_mut(place) {
            *place = Some(Arc::clone(peer));
        }
    }

    fn park(&mut self, depth_of_next: u32) {
        let kept = mem::replace(&mut self.by_index, places(depth_of_next));
        // The pair keeps the handles, since its requests may be in flight. If the pair was destroyed, `upgrade` fails.
        // Then no request is in flight any more, and the handles are dropped.
        if let Some(pair) = self.pair.upgrade() {
            lock(&*pair).push(kept);
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.park(0);
    }
}
