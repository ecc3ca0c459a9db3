//! The retirer: the end of a ledger where values are taken out.
#![allow(unsafe_code, reason = "takes values out of the cells of a ring")]

use super::origin::Origin;
use super::ring::{LedgerPtr, LedgerRef, Poster};
use super::{EmptyLedger, after, between, is_between};
use crate::inflight::cell::Cell;
use crate::inflight::{Completed, Entry, Quiescent, WorkId};
use crate::memory::Buffer;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;

/// The end of a ledger where values are taken out. It is one word, so that a poller with many queues touches few cache
/// lines.
pub(crate) struct Retirer<T>(pub(super) LedgerRef<T>);

impl<T> Retirer<T> {
    /// The same retirer as a word that stays in a register.
    #[inline(always)]
    pub(crate) fn lend(&mut self) -> RetirerRef<'_, T> {
        RetirerRef(self.0.0, PhantomData)
    }

    /// The id of the oldest value in flight; the next id if none is in flight.
    pub(crate) fn oldest(&self) -> u64 {
        self.0.0.oldest()
    }

    pub(crate) fn origin(&self) -> Origin {
        self.0.0.origin
    }

    /// How many cells there are, a power of two.
    pub(crate) fn cells(&self) -> u32 {
        self.0.0.cells()
    }

    /// Takes the oldest value out. The device is done with the work queue.
    pub(crate) fn take(&mut self, quiescent: &Quiescent) -> Option<T> {
        self.lend().oldest_of(quiescent).map(|oldest| oldest.into_oldest().1)
    }

    /// Whether any value is in flight.
    pub(crate) fn has_any(&self) -> bool {
        self.0.0.end_of_posted() != self.oldest()
    }

    /// Makes `id` the next id, if the ledger is empty and `poster` is its other end. Otherwise returns false, and
    /// changes nothing.
    pub(crate) fn restart(&mut self, poster: &mut Poster<T>, id: u64) -> bool {
        let at = self.0.0;
        let may = poster.is_of(at) && !self.has_any();
        if may {
            at.restart(id);
        }
        may
    }

    /// Takes the oldest value out, as the poller does when the request with `id` completes. Also returns how many
    /// requests in flight were posted before that request.
    #[cfg(test)]
    pub(crate) fn retire(&mut self, id: u64) -> Option<(T, u32)> {
        let prefix = self.lend().prefix_to(Completed::without_device(id))?;
        let before = prefix.count_before_last();
        Some((prefix.into_oldest().1, before))
    }
}

/// A [`Retirer`] that is lent, as a word in a register.
pub(crate) struct RetirerRef<'r, T>(LedgerPtr<T>, PhantomData<&'r mut Retirer<T>>);

impl<'r, T> RetirerRef<'r, T> {
    /// The id of the oldest value in flight; the next id if none is in flight.
    #[inline(always)]
    pub(crate) fn oldest(&self) -> u64 {
        self.0.oldest()
    }

    #[inline(always)]
    pub(crate) fn origin(&self) -> Origin {
        self.0.origin
    }

    /// Whether the value with this id is in flight.
    #[inline(always)]
    pub(crate) fn has(&self, id: u64) -> bool {
        is_between(self.oldest(), id, self.0.end_of_posted())
    }

    /// The values from the oldest to that of the completed request; `None` if that request is not in flight.
    #[inline(always)]
    pub(crate) fn prefix_to(self, completed: Completed) -> Option<Prefix<'r, T>> {
        self.prefix_to_id(completed.id())
    }

    /// The oldest value, which is that of the completed request. (The request had another id before it was moved to
    /// this ledger.)
    pub(crate) fn oldest_moved(self, _: Completed) -> Option<Prefix<'r, T>> {
        let oldest = self.oldest();
        self.prefix_to_id(oldest)
    }

    #[inline(always)]
    fn prefix_to_id(self, id: u64) -> Option<Prefix<'r, T>> {
        let oldest = self.oldest();
        is_between(oldest, id, self.0.end_of_posted()).then_some(Prefix {
            at: self.0,
            oldest,
            last: id,
            retirer: PhantomData,
        })
    }

    /// The oldest value. The device is done with the work queue.
    pub(crate) fn oldest_of(self, _: &Quiescent) -> Option<Prefix<'r, T>> {
        let oldest = self.oldest();
        self.prefix_to_id(oldest)
    }

    /// Takes out the value of the completed request, if it is the oldest in flight.
    #[inline(always)]
    pub(crate) fn take_if_oldest(&mut self, completed: Completed) -> Option<T> {
        let id = completed.id();
        if id != self.oldest() || id == self.0.end_of_posted() {
            return None;
        }
        // The prefix's invariants hold: `id` is in flight, and is the oldest.
        Some(Prefix { at: self.0, oldest: id, last: id, retirer: PhantomData }.take_first())
    }
}

/// The oldest values in flight, up to one whose request has completed. If the queue retires prefixes, all of their
/// requests have ended, so all of the values may be taken out. Values that are not taken stay in the ledger.
pub(crate) struct Prefix<'r, T> {
    at: LedgerPtr<T>,
    /// # Invariants
    ///
    /// 0. `oldest` is the oldest id in the ledger.
    oldest: u64,
    /// 1. Each id from `oldest` to `last`, both included, is in flight. The poster does not take these values back,
    ///    since the device has their requests. Only the retirer takes them out, and this borrows it.
    last: u64,
    retirer: PhantomData<&'r mut Retirer<T>>,
}

impl<T> Prefix<'_, T> {
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.oldest
    }

    #[inline(always)]
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    #[inline(always)]
    pub(crate) fn origin(&self) -> Origin {
        self.at.origin
    }

    /// How many values are before the last.
    #[inline(always)]
    pub(crate) fn count_before_last(&self) -> u32 {
        between(self.oldest, self.last)
    }

    /// Takes the oldest value out. The remaining values, if any, are still a valid prefix.
    #[inline(always)]
    fn take_first(&mut self) -> T {
        let id = self.oldest;
        // SAFETY: the value is in flight (1). The poster wrote the value before it stored the `posted` that this end
        // has acquired, and only this end takes values out.
        let value = unsafe { self.at.take(id, true) };
        self.oldest = after(id, 1);
        self.at.set_oldest(self.oldest);
        value
    }

    /// Takes the oldest value out, with its id. The others stay in the ledger.
    #[inline(always)]
    pub(crate) fn into_oldest(mut self) -> (u64, T) {
        (self.oldest, self.take_first())
    }

    /// Takes the oldest value out, with its id. `None` if only the last value is left.
    #[inline(always)]
    pub(crate) fn next_before_last(&mut self) -> Option<(u64, T)> {
        let id = self.oldest;
        (id != self.last).then(|| (id, self.take_first()))
    }

    /// Takes the last value out. The caller has taken the values before it.
    #[inline(always)]
    pub(crate) fn into_last(mut self) -> T {
        debug_assert_eq!(self.oldest, self.last, "values before the last are left");
        self.take_first()
    }

    /// Takes out the values before the last, and gives each to `f` with its id. The poster gets their cells back at the
    /// end, also if `f` panics.
    #[inline(always)]
    pub(crate) fn each_before_last(&mut self, mut f: impl FnMut(u64, T)) {
        /// When dropped, marks the cells of the values that were taken out as free.
        struct Progress<'t, T> {
            at: LedgerPtr<T>,
            oldest: &'t mut u64,
            next: u64,
        }
        impl<T> Drop for Progress<'_, T> {
            #[inline(always)]
            fn drop(&mut self) {
                *self.oldest = self.next;
                self.at.set_oldest(self.next);
            }
        }
        self.move_sole_to_cell();
        let (at, end) = (self.at, self.last);
        let mut progress = Progress { at, next: self.oldest, oldest: &mut self.oldest };
        while progress.next != end {
            for cell in at.cells_between(progress.next, end) {
                let id = progress.next;
                // SAFETY: the value is in flight (1), so the cell holds it. The poster wrote the value before it stored
                // the `posted` that this end has loaded (acquire).
                let value = unsafe { cell.take() };
                progress.next = after(id, 1);
                f(id, value);
            }
        }
    }

    /// Moves the oldest value to its cell, if it is the sole value.
    #[inline(always)]
    fn move_sole_to_cell(&mut self) {
        // SAFETY: the oldest value is in flight (1), so the place of the sole value belongs to the retirer (ledger 3).
        if let Some(sole) = self.at.sole.with_mut(|sole| unsafe { (*sole).take() }) {
            // SAFETY: `sole` is the oldest value, which is in flight (1), so the cell of the oldest id belongs to the
            // retirer (ledger 0). That cell is empty, since the sole value was kept outside the cells (ledger 3).
            unsafe { self.at.cell(self.oldest).put(sole) };
        }
    }

    /// The cells of the values from the oldest to before `end`, or only those before the end of the ring. `end` is at
    /// most the id after the last.
    #[inline(always)]
    pub(super) fn row_to(&mut self, end: u64) -> &[Cell<T>] {
        self.move_sole_to_cell();
        self.at.cells_between(self.oldest, end)
    }

    /// Marks the cells of the oldest `count` values as free. The caller has taken the values out.
    #[inline(always)]
    pub(super) fn took(&mut self, count: u32) {
        self.oldest = after(self.oldest, count);
        self.at.set_oldest(self.oldest);
    }
}

/// Takes out buffers, as many at once as possible. This is the fastest way out of a ledger.
impl Prefix<'_, Entry> {
    /// Puts all values into `free`, if all are buffers. Otherwise returns the values that it did not put there.
    #[inline(always)]
    pub(crate) fn into_buffers<B>(mut self, free: &mut Vec<Buffer<B>>) -> Result<(), Self> {
        free.reserve(self.count_before_last() as usize + 1);
        let end = after(self.last, 1);
        while self.take_row(free, end) {
            if self.oldest == end {
                return Ok(());
            }
        }
        Err(self)
    }

    /// Puts values before the last into `free`. Stops before the first row of cells that holds anything but buffers.
    #[inline(always)]
    pub(crate) fn take_buffers_before_last<B>(&mut self, free: &mut Vec<Buffer<B>>) {
        free.reserve(self.count_before_last() as usize);
        while self.count_before_last() != 0 && self.take_row(free, self.last) {}
    }

    /// Takes out the values from the oldest to before `end`, or only those before the end of the ring. If any of them
    /// is not a buffer, or `free` has no room for them, takes none and returns false. There must be at least one value,
    /// and `end` is at most the id after the last.
    ///
    /// The loop first copies all words, and checks afterwards whether all of them were buffers. So the compiler can
    /// vectorize it.
    #[inline(always)]
    fn take_row<B>(&mut self, free: &mut Vec<Buffer<B>>, end: u64) -> bool {
        let row = self.row_to(end);
        let count = row.len();
        let Some(places) = free.spare_capacity_mut().get_mut(..count) else { return false };
        let mut bits = 0;
        for (cell, place) in row.iter().zip(places) {
            // SAFETY: the value is in flight (1). If all values of the row are buffers, the copy replaces the value in
            // the cell; otherwise the copy is not used.
            let entry = ManuallyDrop::new(unsafe { cell.take() });
            bits |= entry.bits();
            *place = ManuallyDrop::into_inner(entry).into_maybe_buffer();
        }
        if !Entry::are_buffers(bits) {
            return false;
        }
        // SAFETY: the loop has written `count` entries behind the old length, and all of them are buffers
        // (`are_buffers`).
        unsafe { free.set_len(free.len() + count) };
        self.took(count as u32);
        true
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
