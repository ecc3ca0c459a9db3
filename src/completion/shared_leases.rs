//! The room of a completion queue that shared receive queues have leased.

use crate::inflight::SharedLedger;
use crate::sync::Arc;

/// The room that a completion queue has leased to shared receive queues. Each shared receive queue has one lease,
/// however many of its pairs complete here.
#[derive(Default)]
pub(super) struct SharedLeases(Vec<SharedLease>);

struct SharedLease {
    ledger: SharedLedger,
    /// How many pairs may still have completions in the completion queue.
    pairs: u32,
}

impl SharedLeases {
    fn of(&mut self, ledger: &SharedLedger) -> Option<usize> {
        self.0.iter().position(|lease| Arc::ptr_eq(&lease.ledger, ledger))
    }

    /// How much room one more pair of that shared receive queue needs.
    pub(super) fn needed(&mut self, ledger: &SharedLedger) -> u32 {
        if self.of(ledger).is_some() { 0 } else { ledger.slots() }
    }

    /// Counts a pair that was attached, and begins the lease with the first one.
    pub(super) fn begin(&mut self, ledger: &SharedLedger) {
        match self.of(ledger).and_then(|at| self.0.get_mut(at)) {
            Some(lease) => lease.pairs += 1,
            None => self.0.push(SharedLease { ledger: Arc::clone(ledger), pairs: 1 }),
        }
    }

    /// Counts a pair that has gone, and ends the lease with the last one. Returns how much room became free.
    pub(super) fn end(&mut self, ledger: &SharedLedger) -> u32 {
        let Some(at) = self.of(ledger) else { return 0 };
        match self.0.get_mut(at) {
            Some(lease) if lease.pairs > 1 => {
                lease.pairs -= 1;
                0
            }
            _ => self.0.swap_remove(at).ledger.slots(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::domain::Numbers;
    use crate::inflight::{Entry, SlabPoster, slab};

    fn queues() -> [SlabPoster<Entry>; 2] {
        let numbers = std::sync::Arc::new(Numbers::default());
        [(); 2].map(|()| slab(numbers.take(2).unwrap(), 2, 2))
    }

    #[test]
    fn room_is_leased_once_for_all_pairs_of_a_queue() {
        let (mut leases, [queue, other]) = (SharedLeases::default(), queues());
        assert_eq!((leases.needed(&queue.slab), leases.needed(&other.slab)), (2, 2));
        leases.begin(&queue.slab);
        leases.begin(&queue.slab);
        assert_eq!((leases.needed(&queue.slab), leases.needed(&other.slab)), (0, 2));
        assert_eq!([(); 3].map(|()| leases.end(&queue.slab)), [0, 2, 0]);
        assert_eq!(leases.needed(&queue.slab), 2);
    }
}
