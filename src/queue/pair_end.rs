//! How a queue pair ends: it is reset, destroyed, or left to its poller, which destroys it.

use super::attributes::Modify;
use super::places::Places;
use crate::completion::{CqInner, Departing, Orphan, Remains};
use crate::domain::DomainInner;
use crate::inflight::{PairStatus, Quiescent, RawPair, ReceiveQueue, SendQueue, SharedCore, polling_lock};
use crate::provider::reviewed::Teardown;
use crate::sys::ibv_qp_state as raw_state;
use crate::verb_error::{VerbError, note_leak};
use std::mem;
use std::sync::{Arc, MutexGuard};

/// A pair that the program has dropped. The poller of its receives destroys the pair.
pub(super) struct DepartingPair {
    pub(super) raw: RawPair,
    pub(super) places: Places,
    /// The completion queue of the pair's sends, if its receives complete on another. (Suppose each of two completion
    /// queues keeps a departing pair whose sends complete on the other queue. Then the two keep each other alive until
    /// one of them is polled. If neither has a poller or a handle any more, both are leaked.)
    pub(super) sends_on: Option<Arc<CqInner>>,
    pub(super) status: Arc<PairStatus>,
    /// The shared receive queue must outlive the pair, so this field comes after `raw`.
    pub(super) _shared: Option<Arc<SharedCore>>,
    pub(super) domain: Arc<DomainInner>,
}

impl DepartingPair {
    /// Moves the pair to Error, so that the device flushes its requests in flight.
    pub(super) fn flush(&self) -> Result<(), VerbError> {
        let mut modify = Modify::to(raw_state::IBV_QPS_ERR);
        self.raw.modify(&mut modify.attributes, modify.mask)
    }
}

impl Departing for DepartingPair {
    fn slots(&self) -> [Option<usize>; 2] {
        let Places { send, receive } = &self.places;
        // `Teardown::Polled` requires that all sends complete before the pair is destroyed, so the library signals all
        // of them. With another `teardown` the last sends can be unsignalled. If such sends succeed, they never
        // complete, so the poller must not wait for them.
        let waits_for_sends = self.sends_on.is_none() && self.domain.context.promises().teardown == Teardown::Polled;
        [waits_for_sends.then(|| send.slot()), Some(receive.slot())]
    }

    fn is_on_shared(&self) -> bool {
        self.places.receive.shared.is_some()
    }

    fn may_receive(&self) -> bool {
        self.raw.may_receive()
    }

    #[cfg(feature = "aio")]
    fn may_keep_requests(&self) -> bool {
        self.status.is_poisoned() || !self.domain.context.promises().flushes_late_posts
    }

    fn flush_again(&self) -> Result<(), VerbError> {
        self.flush()
    }

    fn destroy(&mut self) -> Result<Quiescent, VerbError> {
        destroy(&mut self.raw, &self.domain, &self.status, None)
    }

    fn into_remains(self: Box<Self>, quiescent: &Quiescent) -> Remains {
        let Self { raw, places: Places { send, receive }, sends_on, .. } = *self;
        // Drop `raw` before `sends_on`: `raw` holds the handles of both completion queues. If `sends_on` is the last
        // reference to its queue, the drop of `sends_on` destroys that queue. If `raw` still held the handle of the
        // queue, the destroy would fail, and the queue would be leaked. The shared receive queue stays in `self` until
        // the end of this function, so it outlives `raw`.
        drop(raw);
        let [send, receive] =
            [send, receive].map(|place| Orphan { place, keeps_lease: None, quiescent: quiescent.clone() });
        match sends_on {
            None => Remains { orphans: [Some(send), Some(receive)], leftover: None },
            Some(queue) => {
                queue.orphan(send);
                Remains { orphans: [None, Some(receive)], leftover: Some(Box::new(queue)) }
            }
        }
    }

    fn leak(self: Box<Self>, error: VerbError) {
        note_leak("a queue pair", error);
        if let Some(queue) = &self.sends_on {
            queue.note_leaked();
        }
        mem::forget(self);
    }
}

/// Moves the pair to Reset. With some providers this waits until no poll is under way.
pub(super) fn reset_in_turn(raw: &RawPair, domain: &DomainInner) -> Result<Option<Quiescent>, VerbError> {
    let _turn = turn_for(domain, raw);
    raw.reset()
}

/// Leaves the pair's multicast groups, frees its windows, and destroys the pair. `queues` are its work queues; `None`
/// if they were dropped.
pub(super) fn destroy(
    raw: &mut RawPair,
    domain: &DomainInner,
    status: &PairStatus,
    queues: Option<(&mut SendQueue, &mut ReceiveQueue)>,
) -> Result<Quiescent, VerbError> {
    raw.detach_all()?;
    if raw.has_windows() {
        // No request may name a window that is freed. So reset the pair first: the reset ends its requests, and a pair
        // in Reset takes no posts. If the reset or a later step fails, the program keeps the pair, so poison `status`,
        // which then refuses posts. (Where `pairs_can_be_reset` is false, the reset may leave requests in flight.
        // Windows are no barriers there: only the end of the whole region gives memory back, not the end of a window.)
        status.poison();
        reset_in_turn(raw, domain)?;
        raw.free_windows()?;
    }
    raw.destroy(queues)
}

/// Locks the polling of the pair's completion queue, on providers where nobody may poll while a pair is reset or
/// destroyed. With such a provider a pair has only one completion queue. [`destroy`] needs no lock there: it is called
/// when nobody else polls.
pub(super) fn turn_for(domain: &DomainInner, raw: &RawPair) -> Option<MutexGuard<'static, ()>> {
    (domain.context.promises().teardown == Teardown::Polled).then(|| polling_lock(raw.send_cq()))
}
