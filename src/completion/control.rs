//! The state that the control path and the poller of a completion queue share: the poller's mail, and the room that
//! work queues lease.
//!
//! Every attached work queue has a *place*: a slot, whose number its work ids carry, and a lease of room for its full
//! depth. After the queue pair is destroyed, both are given back only when the poller has seen every completion that
//! the queue could still hold: old completions of the pair may be among them. The next work queue in a slot continues
//! the id count of the last one, so an old id never names a new request.
//!
//! ASSUMPTION: a pair makes at most one completion for each request that it can hold.

use super::message::{Message, Place};
use super::shared_leases::SharedLeases;
use crate::domain::Blocks;
use crate::inflight::{MAX_SLOTS, Mailbox, QueueKey, QueueKind, SharedLedger};
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// A completion queue has no room for the full depth of a queue pair's work queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the completion queue has room for {free} more completions, but {needed} are needed: make it larger, or destroy \
     other queue pairs and then poll until the queue is empty (see docs/failures.md#no-room)"
)]
pub struct NoRoom {
    /// How many completions the queue pair needs room for.
    pub needed: u32,
    /// How many completions there is room for.
    pub free: u32,
}

pub(crate) struct Control {
    pub(super) mailbox: Mailbox<Message>,
    room: Mutex<Room>,
    /// The memory from which the domain allocates ledgers.
    pub(super) ledgers: Arc<Blocks>,
}

impl Control {
    pub(super) fn new(capacity: u32, ledgers: &Arc<Blocks>) -> Self {
        Self { mailbox: Mailbox::new(), room: Mutex::new(Room::new(capacity)), ledgers: Arc::clone(ledgers) }
    }

    pub(super) fn room(&self) -> MutexGuard<'_, Room> {
        lock(&self.room)
    }
}

/// The slots and the room of a completion queue.
pub(super) struct Room {
    /// Never less than `leased`.
    capacity: u32,
    leased: u32,
    shared: SharedLeases,
    /// The numbers of the pairs that may have completions of shared receives in the queue. A reset adds a pair's number
    /// once more, until the completions from before the reset were seen.
    numbers: Vec<u32>,
    /// Slots that were used before, each with the count at which the ids of its next user begin. The slot that was free
    /// for longest comes first.
    free: VecDeque<(u32, u64)>,
    /// The lowest slot that was never used.
    fresh: u32,
}

impl Room {
    fn new(capacity: u32) -> Self {
        let (shared, numbers, free) = Default::default();
        Self { capacity, leased: 0, shared, numbers, free, fresh: 0 }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    pub(super) fn leased(&self) -> u32 {
        self.leased
    }

    pub(super) fn free(&self) -> u32 {
        self.capacity - self.leased
    }

    /// Records that a pair with that number receives from a shared receive queue.
    pub(super) fn note_number(&mut self, qpn: u32) {
        self.numbers.push(qpn);
    }

    /// Whether the queue may hold completions of shared receives that a pair with that number took.
    pub(super) fn has_number(&self, qpn: u32) -> bool {
        self.numbers.contains(&qpn)
    }

    /// Undoes one [`note_number`](Self::note_number), after all completions that it was for were seen.
    pub(super) fn forget_number(&mut self, qpn: u32) {
        if let Some(at) = self.numbers.iter().position(|&number| number == qpn) {
            self.numbers.swap_remove(at);
        }
    }

    /// Leases room for `depth` completions, and takes a slot.
    pub(super) fn lease(&mut self, kind: QueueKind, depth: u32) -> Result<Place, NoRoom> {
        if depth > self.free() {
            return Err(NoRoom { needed: depth, free: self.free() });
        }
        let place = self.place(kind, depth).ok_or(NoRoom { needed: depth, free: 0 })?;
        self.leased += depth;
        Ok(place)
    }

    /// How much room one more pair of that shared receive queue leases for its receives: all of the queue's receives
    /// for the first pair, nothing for later pairs.
    pub(super) fn needed_by(&mut self, ledger: &SharedLedger) -> u32 {
        self.shared.needed(ledger)
    }

    /// Takes a slot for a pair on a shared receive queue, and leases the room that the pair [needs](Self::needed_by).
    pub(super) fn lease_shared(&mut self, ledger: &SharedLedger) -> Result<Place, NoRoom> {
        let needed = self.needed_by(ledger);
        if needed > self.free() {
            return Err(NoRoom { needed, free: self.free() });
        }
        let place = self.place(QueueKind::Receive, 0).ok_or(NoRoom { needed, free: 0 })?;
        self.leased += needed;
        self.shared.begin(ledger);
        Ok(Place { shared: Some(SharedLedger::clone(ledger)), ..place })
    }

    /// Takes another slot under the lease of `old`, because completions of the old slot may still be in the queue.
    pub(super) fn renew(&mut self, kind: QueueKind, old: &Place) -> Option<Place> {
        let place = self.place(kind, old.depth)?;
        Some(Place { shared: old.shared.clone(), ..place })
    }

    /// Gives a slot back, and also its lease if `ends_lease`. Returns the place's handle of the shared receive queue.
    /// Drop it without the lock: the last handle drops memory of the program.
    #[must_use = "to be dropped without the lock"]
    pub(super) fn release(&mut self, place: Place, ends_lease: bool) -> Option<SharedLedger> {
        self.free.push_back((place.next.key().slot() as u32, place.next.count()));
        if ends_lease {
            self.leased -= place.depth;
            if let Some(ledger) = &place.shared {
                self.leased -= self.shared.end(ledger);
            }
        }
        place.shared
    }

    fn place(&mut self, kind: QueueKind, depth: u32) -> Option<Place> {
        let (slot, count) = match self.free.pop_front() {
            Some(used) => used,
            None if self.fresh < MAX_SLOTS => {
                self.fresh += 1;
                // Counts begin at 1, so no request has the id 0. A completion that the device did not fill in has the
                // id 0, and must name no request.
                (self.fresh - 1, 1)
            }
            None => return None,
        };
        Some(Place { next: QueueKey::new(kind, slot).first(count), depth, shared: None })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::inflight::WorkId;

    /// If a device writes no id into a completion, the completion names no request.
    #[test]
    fn no_request_has_the_id_zero() {
        let place = Room::new(8).place(QueueKind::Send, 4).unwrap();
        assert_ne!(place.next.raw(), 0);
    }

    #[test]
    fn a_slot_never_names_a_request_as_it_named_one_of_an_earlier_life() {
        let mut room = Room::new(1);
        let mut last = None;
        // Except under Miri, the loop uses the slot more than 2^18 times. If ids counted the uses of their slot with
        // only 18 bits, they would repeat by then.
        for _ in 0..if cfg!(miri) { 100 } else { (1 << 18) + 2 } {
            let place = room.lease(QueueKind::Send, 1).unwrap();
            assert!(last.is_none_or(|last: WorkId| last.count() < place.next.count()));
            last = Some(place.next);
            let next = place.next.after(1);
            drop(room.release(Place { next, ..place }, true));
        }
    }

    #[test]
    fn slots_are_used_in_turn() {
        let mut room = Room::new(3);
        let places = [(); 3].map(|()| room.lease(QueueKind::Send, 1).unwrap());
        let slots = places.each_ref().map(Place::slot);
        places.into_iter().for_each(|place| drop(room.release(place, true)));
        let again = [(); 3].map(|()| room.lease(QueueKind::Receive, 1).unwrap().slot());
        assert_eq!(slots, again);
    }
}
