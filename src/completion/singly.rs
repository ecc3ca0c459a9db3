//! Work queues whose requests end by their own completions alone, in whatever order these come.
//!
//! A ledger gives its values out in the order of posting. Where completions come otherwise, the request that one names is
//! brought from its place there to a ledger for one request, and goes on from there as if it had been the oldest.
//! A bit for each place says which requests were brought already; their places are free again once all before them
//! were brought too.
#![allow(unsafe_code, reason = "takes entries out of the middle of a ledger")]

use crate::domain::Blocks;
use crate::inflight::ledger::{Origin, Poster, Retirer, after, ledger};
use crate::inflight::{Entry, WorkId};
use std::sync::Arc;

/// The requests of one work queue.
struct Single {
    /// All that are in flight.
    ring: Retirer<Entry>,
    /// # Invariants
    ///
    /// 0. Of a ledger for one request, whose other end the desk has in the place of the queue.
    brought: Poster<Entry>,
    /// 1. A bit for each cell of `ring`: set while its request is in flight there and was brought.
    taken: Vec<u64>,
}

/// Those of a completion queue, by slot.
#[derive(Default)]
pub(super) struct Singles(Vec<Option<Box<Single>>>);

impl Singles {
    fn of(&mut self, slot: usize) -> Option<&mut Single> {
        self.0.get_mut(slot)?.as_deref_mut()
    }

    /// From here on the requests of `ring`, which has that `slot`, end singly. What comes back takes its place.
    pub(super) fn begin(&mut self, slot: usize, ring: Retirer<Entry>, pool: &Arc<Blocks>) -> Retirer<Entry> {
        let origin = Origin::new(ring.origin().qpn(), ring.origin().datagrams());
        let (brought, retirer) = ledger(pool, 1, ring.oldest(), origin);
        let taken = vec![0; ring.cells().div_ceil(u64::BITS) as usize];
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        if let Some(place) = self.0.get_mut(slot) {
            *place = Some(Box::new(Single { ring, brought, taken }));
        }
        retirer
    }

    /// Whether the queue in that slot is one of them.
    pub(super) fn has(&self, slot: usize) -> bool {
        self.0.get(slot).is_some_and(Option::is_some)
    }

    /// Whether the request with this id can be brought: it is in flight, of such a queue, and was not brought already.
    pub(super) fn has_one(&mut self, id: WorkId) -> bool {
        self.of(id.key().slot()).is_some_and(|single| single.has_one(id.raw()))
    }

    /// Brings the request with this id; false if it is not in flight, was brought already, or is of no such queue.
    pub(super) fn bring(&mut self, id: WorkId) -> bool {
        self.of(id.key().slot()).is_some_and(|single| single.bring(id.raw()))
    }

    /// Brings the oldest request of that slot, if there is one left.
    pub(super) fn bring_oldest(&mut self, slot: usize) -> bool {
        self.of(slot).is_some_and(|single| {
            let oldest = single.ring.oldest();
            single.bring(oldest)
        })
    }

    /// Whether any request of that slot was not brought.
    pub(super) fn has_any(&self, slot: usize) -> bool {
        // What was brought is accounted for at once, so the oldest is one that was not.
        self.0.get(slot).and_then(Option::as_deref).is_some_and(|single| single.ring.has_any())
    }

    /// The queue is gone: its ledger, which is empty.
    pub(super) fn end(&mut self, slot: usize) -> Option<Retirer<Entry>> {
        self.0.get_mut(slot)?.take().map(|single| single.ring)
    }

    /// What is still in flight.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        self.0.drain(..).flatten().flat_map(|mut single| {
            let mut entries = Vec::new();
            while let Some(id) = single.oldest() {
                entries.push(single.take(id));
            }
            entries
        })
    }
}

impl Single {
    /// The word and the bit of an id.
    fn bit(&self, id: u64) -> (usize, u64) {
        let cell = WorkId::from_raw(id).index() & (self.ring.cells() - 1);
        ((cell / u64::BITS) as usize, 1 << (cell % u64::BITS))
    }

    fn is_taken(&self, id: u64) -> bool {
        let (word, bit) = self.bit(id);
        self.taken.get(word).is_some_and(|taken| taken & bit != 0)
    }

    /// The id of the oldest request, if there is one.
    fn oldest(&self) -> Option<u64> {
        self.ring.has_any().then(|| self.ring.oldest())
    }

    fn has_one(&mut self, id: u64) -> bool {
        self.ring.lend().oldest_up_to(id).is_some() && !self.is_taken(id) && self.brought.free() != 0
    }

    fn bring(&mut self, id: u64) -> bool {
        if !self.has_one(id) {
            return false;
        }
        let entry = self.take(id);
        // SAFETY: there is room for one, so none is in flight; the desk, which asks for this, has the other end (0).
        unsafe { self.brought.rename(id) };
        self.brought.push(entry);
        true
    }

    /// Takes a request out that is in flight and was not brought. Accounts for all that are out up to the oldest that is not.
    fn take(&mut self, id: u64) -> Entry {
        // SAFETY: in flight, and not taken before (caller).
        let entry = unsafe { self.ring.lend().take_at(id) };
        let (word, bit) = self.bit(id);
        if let Some(taken) = self.taken.get_mut(word) {
            *taken |= bit;
        }
        let mut oldest = self.ring.oldest();
        while self.is_taken(oldest) {
            let (word, bit) = self.bit(oldest);
            if let Some(taken) = self.taken.get_mut(word) {
                *taken &= !bit;
            }
            oldest = after(oldest, 1);
        }
        // SAFETY: taken out one by one, as the bits said (1).
        unsafe { self.ring.lend().took(oldest) };
        entry
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::inflight::{Operation, QueueKey, QueueKind};

    /// A queue of `depth` in slot 1 with all of it posted, as the desk has it.
    fn full(depth: u32) -> (Singles, Poster<Entry>, Retirer<Entry>, Vec<u64>) {
        let pool = Arc::default();
        let first = QueueKey::new(QueueKind::Send, 1).first(7).raw();
        let (mut poster, ring) = ledger(&pool, depth, first, Origin::new(5, false));
        let ids = (0..depth).map(|ahead| after(first, ahead)).collect();
        for _ in 0..depth {
            assert!(poster.try_push(Entry::inline(Operation::Send)).is_ok());
        }
        let mut singles = Singles::default();
        let place = singles.begin(1, ring, &pool);
        (singles, poster, place, ids)
    }

    fn takes(singles: &mut Singles, place: &mut Retirer<Entry>, id: u64) -> bool {
        singles.bring(WorkId::from_raw(id)) && place.retire(id).is_some()
    }

    #[test]
    fn each_request_comes_once_in_any_order() {
        let (mut singles, poster, mut place, ids) = full(5);
        for at in [3, 0, 4, 1, 2] {
            assert!(takes(&mut singles, &mut place, ids[at]), "{at}");
            assert!(!takes(&mut singles, &mut place, ids[at]), "{at} again");
        }
        assert_eq!((poster.free(), singles.has_any(1), place.has_any()), (5, false, false));
    }

    #[test]
    fn room_comes_back_in_the_order_of_posting() {
        let (mut singles, mut poster, mut place, ids) = full(4);
        assert!(takes(&mut singles, &mut place, ids[2]) && takes(&mut singles, &mut place, ids[1]));
        assert_eq!(poster.free(), 0, "the oldest is in flight");
        assert!(takes(&mut singles, &mut place, ids[0]));
        assert_eq!(poster.free(), 3);
        assert!(poster.try_push(Entry::inline(Operation::Send)).is_ok());
        assert!(takes(&mut singles, &mut place, after(ids[3], 1)), "a place that is used again");
        assert!(takes(&mut singles, &mut place, ids[3]));
        assert_eq!(poster.free(), 4);
    }

    #[test]
    fn what_is_not_in_flight_is_not_brought() {
        let (mut singles, _poster, place, ids) = full(2);
        for id in [after(ids[1], 1), after(ids[0], 1 << 20), ids[0] ^ 1, 0, u64::MAX] {
            assert!(!singles.bring(WorkId::from_raw(id)), "{id:#x}");
        }
        assert!(singles.bring(WorkId::from_raw(ids[1])) && place.has_any());
        assert!(!singles.bring(WorkId::from_raw(ids[0])), "the one before was not taken");
    }

    #[test]
    fn what_is_left_comes_out_oldest_first() {
        let (mut singles, _poster, mut place, ids) = full(4);
        assert!(takes(&mut singles, &mut place, ids[1]));
        for id in [ids[0], ids[2]] {
            assert!(singles.bring_oldest(1));
            assert_eq!(place.oldest(), id);
            assert!(place.take().is_some());
        }
        assert_eq!((singles.drain().count(), singles.has_any(1)), (1, false));
    }
}
