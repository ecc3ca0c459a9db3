//! Queue pairs that the program has let go of, and that their poller destroys.

use super::attributes::Modify;
use super::untyped::{Places, destroy};
use crate::completion::{CqInner, Departing, Orphan, Place};
use crate::domain::DomainInner;
use crate::inflight::{PairStatus, RawPair, SharedCore};
use crate::provider::reviewed::Teardown;
use crate::sys::ibv_qp_state as raw_state;
use crate::verb_error::{VerbError, note_leak};
use std::{mem, sync::Arc};

/// A pair that the program has let go of, and that the poller of its receives destroys.
pub(super) struct DepartingPair {
    pub(super) raw: RawPair,
    pub(super) places: Places,
    /// The completion queue of its sends, if its receives complete on another. (Two completion queues that each wait
    /// for a pair which sends on the other keep each other alive until one of them was polled.)
    pub(super) sends_on: Option<Arc<CqInner>>,
    pub(super) status: Arc<PairStatus>,
    /// Ends after the pair.
    pub(super) _shared: Option<Arc<SharedCore>>,
    pub(super) domain: Arc<DomainInner>,
}

impl DepartingPair {
    /// Moves the pair to Error, so that the device flushes what is in flight.
    pub(super) fn flush(&self) {
        let mut modify = Modify::to(raw_state::IBV_QPS_ERR);
        // Where it fails, the pair is destroyed with its completion queue.
        let _ = self.raw.modify(&mut modify.attributes, modify.mask);
    }
}

impl Departing for DepartingPair {
    fn slots(&self) -> [Option<usize>; 2] {
        let Places { send, receive } = &self.places;
        // Sends are waited for only where pairs must be drained. Elsewhere they may be unsignalled, and never complete.
        let waits_for_sends = self.sends_on.is_none() && self.domain.context.promises().teardown == Teardown::Polled;
        [waits_for_sends.then(|| send.slot()), Some(receive.slot())]
    }

    fn is_on_shared(&self) -> bool {
        self.places.receive.shared.is_some()
    }

    fn flush_again(&self) {
        self.flush();
    }

    fn destroy(&mut self) -> Result<(), VerbError> {
        destroy(&mut self.raw, &self.domain, &self.status)
    }

    fn into_places(self: Box<Self>) -> [Option<Place>; 2] {
        let Places { send, receive } = self.places;
        match self.sends_on {
            None => [Some(send), Some(receive)],
            Some(queue) => {
                queue.orphan(Orphan { place: send, keeps_lease: None });
                [None, Some(receive)]
            }
        }
    }

    fn leak(self: Box<Self>, error: VerbError) {
        note_leak("a queue pair", error);
        mem::forget(self);
    }
}
