//! The retirers of the work queues of one completion queue.
#![forbid(unsafe_code)]

use super::{LedgerRef, Retirer, RetirerRef, ledger};
use crate::inflight::cell::Masked;
use crate::inflight::ledger::Origin;
use std::sync::Arc;

/// The retirers of the work queues of one completion queue, by slot.
pub(crate) struct Retirers<T> {
    /// A place without a work queue holds a retirer of `empty`, so that a lookup needs no check for such places.
    places: Masked<Retirer<T>>,
    empty: EmptyLedger<T>,
}

impl<T> Retirers<T> {
    pub(crate) fn new() -> Self {
        let empty = EmptyLedger::new();
        Self { places: Masked::new(empty.retirer()), empty }
    }

    /// The retirer in the place that the low bits of the id name. If the id belongs to no queue, this may be the
    /// retirer of another queue, where the id is not in flight.
    #[inline(always)]
    pub(crate) fn of(&mut self, id: u64) -> RetirerRef<'_, T> {
        self.places.of(id as usize).lend()
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Retirer<T>> {
        self.places.get(slot)
    }

    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut Retirer<T>> {
        self.places.get_mut(slot)
    }

    /// Puts a retirer into a slot.
    pub(crate) fn put(&mut self, slot: usize, retirer: Retirer<T>) {
        self.places.grow_to(slot, || self.empty.retirer());
        if let Some(place) = self.places.get_mut(slot) {
            *place = retirer;
        }
    }

    /// Takes the retirer out of a slot.
    pub(crate) fn vacate(&mut self, slot: usize) -> Option<Retirer<T>> {
        let empty = self.empty.retirer();
        self.places.get_mut(slot).map(|place| core::mem::replace(place, empty))
    }
}

/// A ledger that nobody posts to. Its retirers fill the slots of a completion queue that have no work queue.
struct EmptyLedger<T>(LedgerRef<T>);

impl<T> EmptyLedger<T> {
    fn new() -> Self {
        Self(ledger(&Arc::default(), 1, 0, Origin::default()).1.0)
    }

    /// A retirer that never finds anything. There may be many of them.
    fn retirer(&self) -> Retirer<T> {
        Retirer(self.0.clone())
    }
}
