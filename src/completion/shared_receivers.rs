//! The queue pairs of a completion queue that receive from shared receive queues.
//!
//! The id of a shared receive names its shared receive queue. The completion's `qp_num`, which is defined for failures
//! too, names the pair that took the receive. The poller moves the request from the slab of the shared receive queue to
//! a ledger of that pair, which has room for one request. From there the request retires like a receive of the pair.
//!
//! ASSUMPTION: a completion of a shared receive comes to the receive completion queue of the pair that it names in
//! `qp_num` (`ibv_poll_cq(3)`), and a shared receive makes at most one completion.

use crate::inflight::ledger::Poster;
use crate::inflight::{Entry, SharedLedger, WorkId};
use crate::sys;
use std::mem;

/// A queue pair that receives from a shared receive queue and completes here. After a reset the pair gets a new entry.
pub(crate) struct SharedReceiver {
    pub(crate) qpn: u32,
    /// The slot of its receive queue on this completion queue.
    pub(crate) slot: usize,
    /// The posting end of the pair's ledger for one request. The retirer of that ledger is in the slot.
    pub(crate) poster: Poster<Entry>,
    /// The receives in flight on the shared receive queue.
    pub(crate) ledger: SharedLedger,
}

/// All such pairs, sorted by number. While completions of an earlier pair may still come, several pairs may have the
/// same number; the earlier pair comes first.
#[derive(Default)]
pub(super) struct SharedReceivers(Vec<SharedReceiver>);

impl SharedReceivers {
    pub(super) fn join(&mut self, receiver: SharedReceiver) {
        let at = self.0.partition_point(|other| other.qpn <= receiver.qpn);
        self.0.insert(at, receiver);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn leave(&mut self, qpn: u32, slot: usize) {
        self.0.retain(|receiver| (receiver.qpn, receiver.slot) != (qpn, slot));
    }

    /// Moves the request of a shared receive to the pair that its completion names, and returns the slot of that pair.
    /// `None` if no such request is in flight, or if no such pair completes here.
    pub(super) fn move_to_pair(&mut self, wc: &sys::ibv_wc) -> Option<usize> {
        let id = WorkId::from_raw(wc.wr_id);
        let first = self.0.partition_point(|receiver| receiver.qpn < wc.qp_num);
        let of_this_number = self.0.iter_mut().skip(first).take_while(|receiver| receiver.qpn == wc.qp_num);
        let receiver = of_this_number.into_iter().find(|receiver| receiver.ledger.is_of(id))?;
        // Move the request to the ledger of `poster`, which has room for one request. If that ledger is full, the
        // request is there already: an earlier poll has moved it, the program passed the `Retired` of that poll to
        // `mem::forget`, and so this poll finds the same completion.
        if receiver.poster.free() != 0 {
            let entry = receiver.ledger.take(id)?;
            if let Err(entry) = receiver.poster.try_push(entry) {
                // Unreachable, since the ledger has room. A drop would add its code to the polling path; a leak adds
                // none.
                mem::forget(entry);
            }
        }
        Some(receiver.slot)
    }

    /// Whether the id belongs to a shared receive queue that was destroyed.
    pub(super) fn is_of_destroyed(&self, id: WorkId) -> bool {
        self.0.iter().any(|receiver| receiver.ledger.is_of(id) && receiver.ledger.has_ended())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    //! Tests with a device that reports wrong completions.
    use super::*;
    use crate::domain::Numbers;
    use crate::inflight::ledger::{Origin, Retirer, ledger};
    use crate::inflight::{Operation, Quiescent, SlabPoster, slab};
    use crate::sync::Arc;

    fn queues() -> [SlabPoster<Entry>; 2] {
        let numbers = std::sync::Arc::new(Numbers::default());
        [(); 2].map(|()| slab(numbers.take(2).unwrap(), 2, 2))
    }

    fn post(queue: &mut SlabPoster<Entry>) -> WorkId {
        queue.push(Entry::inline(Operation::Send)).unwrap()
    }

    fn join(receivers: &mut SharedReceivers, qpn: u32, slot: usize, queue: &SlabPoster<Entry>) -> Retirer<Entry> {
        let (poster, retirer) = ledger(&Arc::default(), 1, 0, Origin::default());
        receivers.join(SharedReceiver { qpn, slot, poster, ledger: Arc::clone(&queue.slab) });
        retirer
    }

    fn take(retirer: &mut Retirer<Entry>) -> Option<Entry> {
        retirer.take(&Quiescent::without_device())
    }

    fn wc(id: WorkId, qp_num: u32) -> sys::ibv_wc {
        sys::ibv_wc { wr_id: id.raw(), qp_num, ..Default::default() }
    }

    #[test]
    fn a_completion_brings_its_request_to_the_pair_that_it_names_once() {
        let (mut receivers, [mut queue, _]) = (SharedReceivers::default(), queues());
        let [mut one, mut two] = [(7, 0), (3, 1)].map(|(qpn, slot)| join(&mut receivers, qpn, slot, &queue));
        let ids = [post(&mut queue), post(&mut queue)];
        assert_eq!(receivers.move_to_pair(&wc(ids[1], 7)), Some(0));
        assert_eq!(receivers.move_to_pair(&wc(ids[1], 7)), Some(0), "forgotten, not taken");
        assert!(take(&mut one).is_some() && !one.has_any() && !two.has_any());
        assert_eq!(receivers.move_to_pair(&wc(ids[1], 7)), None, "completed twice");
        assert_eq!(receivers.move_to_pair(&wc(ids[1], 3)), None);
        assert_eq!(receivers.move_to_pair(&wc(ids[0], 3)), Some(1));
        assert!(take(&mut two).is_some());
    }

    #[test]
    fn a_completion_that_names_no_pair_of_its_queue_brings_nothing() {
        let (mut receivers, [mut queue, mut other]) = (SharedReceivers::default(), queues());
        let (mut retirer, of_other) = (join(&mut receivers, 7, 0, &queue), join(&mut receivers, 8, 1, &other));
        let (id, others) = (post(&mut queue), post(&mut other));
        for lie in
            [wc(id, 8), wc(id, 6), wc(id, 0), wc(others, 7), wc(WorkId::from_raw(0), 7), wc(WorkId::from_raw(!0), 7)]
        {
            assert_eq!(receivers.move_to_pair(&lie), None, "{:#x} of {}", lie.wr_id, lie.qp_num);
        }
        assert_eq!((queue.slab.in_flight(), other.slab.in_flight()), (1, 1));
        assert!(!retirer.has_any() && !of_other.has_any());
        assert_eq!(receivers.move_to_pair(&wc(id, 7)), Some(0));
        assert!(take(&mut retirer).is_some());
        drop(other.slab.take(others));
    }

    #[test]
    fn completions_of_a_number_are_of_the_pair_that_had_it_first_until_that_is_gone() {
        let (mut receivers, [mut queue, mut other]) = (SharedReceivers::default(), queues());
        let mut old = join(&mut receivers, 7, 4, &queue);
        let mut new = join(&mut receivers, 7, 2, &queue);
        let mut elsewhere = join(&mut receivers, 7, 3, &other);
        let id = post(&mut other);
        assert_eq!(receivers.move_to_pair(&wc(id, 7)), Some(3), "the queue tells");
        let id = post(&mut queue);
        assert_eq!(receivers.move_to_pair(&wc(id, 7)), Some(4));
        receivers.leave(7, 4);
        let id = post(&mut queue);
        assert_eq!(receivers.move_to_pair(&wc(id, 7)), Some(2));
        assert!([&mut old, &mut new, &mut elsewhere].map(take).iter().all(Option::is_some));
    }

    #[test]
    fn what_a_destroyed_queue_had_is_no_fault() {
        let (mut receivers, [mut queue, _]) = (SharedReceivers::default(), queues());
        let retirer = join(&mut receivers, 7, 0, &queue);
        let id = post(&mut queue);
        assert!(!receivers.is_of_destroyed(id));
        queue.slab.end(&Quiescent::without_device());
        assert_eq!(queue.slab.take_all().count(), 1);
        assert_eq!((receivers.move_to_pair(&wc(id, 7)), receivers.is_of_destroyed(id)), (None, true));
        assert!(!retirer.has_any());
    }
}
