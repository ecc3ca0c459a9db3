//! The retirers of a completion queue: by slot, and one that takes values out in any order.
#![allow(unsafe_code, reason = "takes values out of any cell of a ring, and looks a place up without a check")]

use super::{LedgerRef, Poster, Retirer, RetirerRef, ledger};
use crate::inflight::ledger::{Origin, after};
use crate::inflight::{Quiescent, WorkId};
use std::sync::Arc;

/// The retirers of the work queues of one completion queue, by slot.
pub(crate) struct Retirers<T> {
    /// # Invariants
    ///
    /// 0. There are `mask + 1` places, a power of two. A place without a work queue holds a retirer of `empty`, so that
    ///    a lookup needs no check for such places.
    places: Vec<Retirer<T>>,
    mask: usize,
    empty: EmptyLedger<T>,
}

impl<T> Retirers<T> {
    pub(crate) fn new() -> Self {
        let empty = EmptyLedger::new();
        Self { places: vec![empty.retirer()], mask: 0, empty }
    }

    /// The retirer in the place that the low bits of the id name. If the id belongs to no queue, this may be the
    /// retirer of another queue, where the id is not in flight.
    #[inline(always)]
    pub(crate) fn of(&mut self, id: u64) -> RetirerRef<'_, T> {
        // SAFETY: the index is at most `mask`, so there is such a place (0).
        unsafe { self.places.get_unchecked_mut(id as usize & self.mask) }.lend()
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Retirer<T>> {
        self.places.get(slot)
    }

    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut Retirer<T>> {
        self.places.get_mut(slot)
    }

    /// Puts a retirer into a slot.
    pub(crate) fn put(&mut self, slot: usize, retirer: Retirer<T>) {
        if self.places.len() <= slot {
            self.places.resize_with((slot + 1).next_power_of_two(), || self.empty.retirer());
            self.mask = self.places.len() - 1;
        }
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

/// A [`Retirer`] that takes values out in any order. The poster gets their cells back in the order of posting.
pub(crate) struct AnyOrderRetirer<T> {
    retirer: Retirer<T>,
    /// # Invariants
    ///
    /// 0. One bit for each cell of the ledger. The bit is set while the cell's id is in flight and its value has been
    ///    taken out. The bit of the oldest id is clear.
    taken: Vec<u64>,
}

impl<T> AnyOrderRetirer<T> {
    pub(crate) fn new(retirer: Retirer<T>) -> Self {
        let taken = vec![0; retirer.cells().div_ceil(u64::BITS) as usize];
        Self { retirer, taken }
    }

    /// Whether any value is left.
    pub(crate) fn has_any(&self) -> bool {
        // If any id is in flight, the value of the oldest one is left (0).
        self.retirer.has_any()
    }

    /// The id of the oldest value, if one is left.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.has_any().then(|| self.retirer.oldest())
    }

    /// Whether the value with this id is in flight and was not taken out.
    pub(crate) fn has(&mut self, id: u64) -> bool {
        self.retirer.lend().has(id) && !self.is_taken(id)
    }

    /// The index of the word in `taken`, and the bit in that word, for an id.
    fn bit(&self, id: u64) -> (usize, u64) {
        let cell = WorkId::from_raw(id).index() & (self.retirer.cells() - 1);
        ((cell / u64::BITS) as usize, 1 << (cell % u64::BITS))
    }

    fn is_taken(&self, id: u64) -> bool {
        let (word, bit) = self.bit(id);
        self.taken.get(word).is_some_and(|taken| taken & bit != 0)
    }

    fn flip(&mut self, id: u64) {
        let (word, bit) = self.bit(id);
        if let Some(taken) = self.taken.get_mut(word) {
            *taken ^= bit;
        }
    }

    /// Takes out the oldest value that is left. The device is done with the work queue.
    pub(crate) fn take_oldest(&mut self, _: &Quiescent) -> Option<T> {
        let oldest = self.oldest()?;
        self.take(oldest)
    }

    /// Moves the value with this id to another ledger, which owns it from here on. Returns false, and changes nothing,
    /// if the value is not in flight, was moved before, or if the other ledger is full.
    pub(crate) fn move_to(&mut self, id: u64, other: &mut Poster<T>) -> bool {
        if other.free() == 0 {
            return false;
        }
        let Some(value) = self.take(id) else { return false };
        other.push(value);
        true
    }

    /// Takes out the value with this id; `None` if it is not in flight or was taken before. The device may still have
    /// its request.
    fn take(&mut self, id: u64) -> Option<T> {
        if !self.has(id) {
            return None;
        }
        let (at, mut oldest) = (self.retirer.0.0, self.retirer.oldest());
        // SAFETY: the value is in flight and was not taken before. The poster wrote the value before it stored the
        // `posted` that this end has acquired, and only this end takes values out.
        let value = unsafe { at.take(id, id == oldest) };
        self.flip(id);
        while self.is_taken(oldest) {
            self.flip(oldest);
            oldest = after(oldest, 1);
        }
        at.set_oldest(oldest);
        Some(value)
    }

    pub(crate) fn into_retirer(self) -> Retirer<T> {
        self.retirer
    }
}
