//! Work queues whose requests have completed out of the order of posting.
//!
//! A poller takes requests out of a ledger in the order of posting. Suppose a completion names a request that is not
//! the oldest, and does not end the requests before it. Then that request moves to a second ledger, which has room for
//! one request. The poller takes the request from there, where it is the oldest. Receives of every provider may
//! complete out of order, and so may sends of some providers.

use crate::domain::Blocks;
use crate::inflight::ledger::{AnyOrderRetirer, Origin, Poster, Retirer, ledger};
use crate::inflight::{Entry, Quiescent, WorkId};
use std::sync::Arc;

/// The two ledgers of one work queue.
struct TwoLedgers {
    /// The ledger that the program posts to.
    posted: AnyOrderRetirer<Entry>,
    /// The ledger for one request. Its retirer is in the poll state, in the slot of the work queue.
    single: Poster<Entry>,
}

/// The work queues of a completion queue that have completed out of order, by slot.
#[derive(Default)]
pub(super) struct OutOfOrder(Vec<Option<Box<TwoLedgers>>>);

impl OutOfOrder {
    fn of(&mut self, slot: usize) -> Option<&mut TwoLedgers> {
        self.0.get_mut(slot)?.as_deref_mut()
    }

    /// Records that the work queue in this slot, whose ledger is `posted`, completes out of order. Returns the retirer
    /// of its ledger for one request.
    pub(super) fn begin(&mut self, slot: usize, posted: Retirer<Entry>, pool: &Arc<Blocks>) -> Retirer<Entry> {
        let origin = Origin::new(posted.origin().qpn(), posted.origin().datagrams());
        let (single, retirer) = ledger(pool, 1, posted.oldest(), origin);
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        if let Some(place) = self.0.get_mut(slot) {
            *place = Some(Box::new(TwoLedgers { posted: AnyOrderRetirer::new(posted), single }));
        }
        retirer
    }

    /// Whether the work queue in this slot has completed out of order.
    pub(super) fn has(&self, slot: usize) -> bool {
        self.0.get(slot).is_some_and(Option::is_some)
    }

    /// Whether [`move_to_single`](Self::move_to_single) would move the request with this id.
    pub(super) fn can_move(&mut self, id: WorkId) -> bool {
        self.of(id.key().slot()).is_some_and(|queue| queue.single.free() != 0 && queue.posted.has(id.raw()))
    }

    /// Moves the request with this id to the ledger for one request; `retirer` is the other end of that ledger. Returns
    /// false and changes nothing if the id is not in flight, was moved before, or if that ledger holds another request.
    pub(super) fn move_to_single(&mut self, id: WorkId, retirer: &mut Retirer<Entry>) -> bool {
        let Some(queue) = self.of(id.key().slot()) else { return false };
        if !queue.posted.has(id.raw()) || !retirer.restart(&mut queue.single, id.raw()) {
            return false;
        }
        queue.posted.move_to(id.raw(), &mut queue.single)
    }

    /// The id of the oldest request in that slot that was not moved.
    pub(super) fn oldest(&self, slot: usize) -> Option<WorkId> {
        self.0.get(slot)?.as_deref()?.posted.oldest().map(WorkId::from_raw)
    }

    /// Ends the work queue in that slot. It is gone and has no request left. Returns the retirer of the ledger that the
    /// program posted to.
    pub(super) fn end(&mut self, slot: usize) -> Option<Retirer<Entry>> {
        self.0.get_mut(slot)?.take().and_then(|queue| queue.posted.into_retirer())
    }

    /// Takes out the oldest request of that slot which was not moved. The device is done with the work queue.
    pub(super) fn take_oldest(&mut self, slot: usize, quiescent: &Quiescent) -> Option<Entry> {
        self.of(slot)?.posted.take_oldest(quiescent)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::inflight::ledger::after;
    use crate::inflight::{Operation, QueueKey, QueueKind};

    /// An out-of-order queue of `depth` in slot 1 with all of its requests posted, and its retirer for one request, as
    /// a poll state would hold them.
    fn full(depth: u32) -> (OutOfOrder, Poster<Entry>, Retirer<Entry>, Vec<u64>) {
        let pool = Arc::default();
        let first = QueueKey::new(QueueKind::Send, 1).first(7).raw();
        let (mut poster, ring) = ledger(&pool, depth, first, Origin::new(5, false));
        let ids = (0..depth).map(|count| after(first, count)).collect();
        for _ in 0..depth {
            assert!(poster.try_push(Entry::inline(Operation::Send)).is_ok());
        }
        let mut out_of_order = OutOfOrder::default();
        let place = out_of_order.begin(1, ring, &pool);
        (out_of_order, poster, place, ids)
    }

    fn takes(out_of_order: &mut OutOfOrder, place: &mut Retirer<Entry>, id: u64) -> bool {
        out_of_order.move_to_single(WorkId::from_raw(id), place) && place.retire(id).is_some()
    }

    fn has_any(out_of_order: &OutOfOrder) -> bool {
        out_of_order.oldest(1).is_some()
    }

    #[test]
    fn each_request_comes_once_in_any_order() {
        let (mut out_of_order, poster, mut place, ids) = full(5);
        for at in [3, 0, 4, 1, 2] {
            assert!(takes(&mut out_of_order, &mut place, ids[at]), "{at}");
            assert!(!takes(&mut out_of_order, &mut place, ids[at]), "{at} again");
        }
        assert_eq!((poster.free(), has_any(&out_of_order), place.has_any()), (5, false, false));
    }

    #[test]
    fn room_comes_back_in_the_order_of_posting() {
        let (mut out_of_order, mut poster, mut place, ids) = full(4);
        assert!(takes(&mut out_of_order, &mut place, ids[2]) && takes(&mut out_of_order, &mut place, ids[1]));
        assert_eq!(poster.free(), 0, "the oldest is in flight");
        assert!(takes(&mut out_of_order, &mut place, ids[0]));
        assert_eq!(poster.free(), 3);
        assert!(poster.try_push(Entry::inline(Operation::Send)).is_ok());
        assert!(takes(&mut out_of_order, &mut place, after(ids[3], 1)), "a place that is used again");
        assert!(takes(&mut out_of_order, &mut place, ids[3]));
        assert_eq!(poster.free(), 4);
    }

    #[test]
    fn what_is_not_in_flight_is_not_brought() {
        let (mut out_of_order, _poster, mut place, ids) = full(2);
        for id in [after(ids[1], 1), after(ids[0], 1 << 20), ids[0] ^ 1, 0, u64::MAX] {
            assert!(!out_of_order.move_to_single(WorkId::from_raw(id), &mut place), "{id:#x}");
        }
        assert!(out_of_order.move_to_single(WorkId::from_raw(ids[1]), &mut place) && place.has_any());
        assert!(!out_of_order.move_to_single(WorkId::from_raw(ids[0]), &mut place), "the one before was not taken");
    }

    #[test]
    fn what_is_left_comes_out_oldest_first() {
        let (mut out_of_order, _poster, mut place, ids) = full(4);
        assert!(takes(&mut out_of_order, &mut place, ids[1]));
        for id in [ids[0], ids[2]] {
            let oldest = out_of_order.oldest(1).unwrap();
            assert!(out_of_order.move_to_single(oldest, &mut place));
            assert_eq!(place.oldest(), id);
            assert!(place.take(&Quiescent::without_device()).is_some());
        }
        let taken = std::iter::from_fn(|| out_of_order.take_oldest(1, &Quiescent::without_device())).count();
        assert_eq!((taken, has_any(&out_of_order)), (1, false));
    }
}
