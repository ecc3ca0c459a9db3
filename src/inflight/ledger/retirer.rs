//! The end of a ledger that takes values out.
#![allow(unsafe_code, reason = "takes values out of the cells of a ring")]

use super::ring::{LedgerPtr, LedgerRef, Origin};
use super::{Nothing, Poster, after, between, is_between};
use crate::inflight::cell::Cell;
use crate::inflight::{Entry, Quiescent, WorkId};
use crate::memory::Buffer;
use crate::sync::Ordering;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;

/// The end of a ledger that takes values out. One word, so that a poller with many queues touches few cache lines.
pub(crate) struct Retirer<T>(pub(super) LedgerRef<T>);

impl<T> Retirer<T> {
    /// The same as a word that stays in a register.
    #[inline(always)]
    pub(crate) fn lend(&mut self) -> RetirerRef<'_, T> {
        RetirerRef(self.0.0, PhantomData)
    }

    /// The id of the oldest value in flight; of the next one if none is.
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

    /// Takes the oldest value out, of a work queue that the device is done with.
    pub(crate) fn take(&mut self, quiescent: &Quiescent) -> Option<T> {
        self.lend().oldest_of(quiescent).map(|oldest| oldest.into_oldest().1)
    }

    /// Whether any value is in flight.
    pub(crate) fn has_any(&self) -> bool {
        self.0.0.end_of_posted() != self.oldest()
    }

    /// Lets the next value of an empty ledger, of which `poster` is the other end, have this id. False, without a
    /// change, if the ledger is not empty or the other end is of another one.
    pub(crate) fn restart(&mut self, poster: &mut Poster<T>, id: u64) -> bool {
        let at = self.0.0;
        let may = at.is(poster.held.0) && !self.has_any();
        if may {
            // Nobody reads the one without the other in between: both ends are borrowed.
            at.retired.store(id, Ordering::Release);
            at.posted.store(id, Ordering::Release);
        }
        may
    }

    /// Takes the oldest value out, as the poller does for the completion of the request with `id`; says how many
    /// requests were ahead of that one.
    #[cfg(test)]
    pub(crate) fn retire(&mut self, id: u64) -> Option<(T, u32)> {
        let prefix = self.lend().prefix_to(id)?;
        let ahead = prefix.ahead();
        Some((prefix.into_oldest().1, ahead))
    }
}

/// A [`Retirer`] that is lent, as a word in a register.
pub(crate) struct RetirerRef<'r, T>(LedgerPtr<T>, PhantomData<&'r mut Retirer<T>>);

impl<'r, T> RetirerRef<'r, T> {
    /// The id of the oldest value in flight; of the next one if none is.
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

    /// The values from the oldest to the one with this id, if that one is in flight. Its request has completed.
    #[inline(always)]
    pub(crate) fn prefix_to(self, id: u64) -> Option<Prefix<'r, T>> {
        let oldest = self.oldest();
        is_between(oldest, id, self.0.end_of_posted()).then_some(Prefix {
            at: self.0,
            oldest,
            last: id,
            retirer: PhantomData,
        })
    }

    /// The oldest value, of a work queue that the device is done with.
    pub(crate) fn oldest_of(self, _: &Quiescent) -> Option<Prefix<'r, T>> {
        let oldest = self.oldest();
        self.prefix_to(oldest)
    }

    /// Takes the value with this id out, if it is the oldest in flight. Its request has completed.
    #[inline(always)]
    pub(crate) fn take_if_oldest(&mut self, id: u64) -> Option<T> {
        if id != self.oldest() || id == self.0.end_of_posted() {
            return None;
        }
        // In flight, and the oldest.
        Some(Prefix { at: self.0, oldest: id, last: id, retirer: PhantomData }.take_first())
    }
}

/// The oldest values in flight, up to one whose request has completed. Where the queue retires prefixes, all of their
/// requests have ended, so all of the values may be taken out. Values that are not taken stay in the ledger.
pub(crate) struct Prefix<'r, T> {
    at: LedgerPtr<T>,
    /// # Invariants
    ///
    /// 0. `oldest` is the oldest id in the ledger.
    oldest: u64,
    /// 1. Each id from `oldest` to `last`, both included, is in flight. The poster does not take these values back,
    ///    since the device has their requests; only this end takes them out, and its borrow is here.
    last: u64,
    retirer: PhantomData<&'r mut Retirer<T>>,
}

impl<T> Prefix<'_, T> {
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
    pub(crate) fn ahead(&self) -> u32 {
        between(self.oldest, self.last)
    }

    /// Takes the oldest value out. Unless it was the last one, the rest is a prefix again.
    #[inline(always)]
    fn take_first(&mut self) -> T {
        let id = self.oldest;
        // SAFETY: in flight (1), and written before the `posted` that this end acquired; this end retires.
        let value = unsafe { self.at.take(id, true) };
        self.oldest = after(id, 1);
        self.at.set_oldest(self.oldest);
        value
    }

    /// The oldest value with its id; the others stay in the ledger.
    #[inline(always)]
    pub(crate) fn into_oldest(mut self) -> (u64, T) {
        (self.oldest, self.take_first())
    }

    /// Takes the oldest value out with its id, if it is not the last.
    #[inline(always)]
    pub(crate) fn next_before_last(&mut self) -> Option<(u64, T)> {
        let id = self.oldest;
        (id != self.last).then(|| (id, self.take_first()))
    }

    /// The last value. Those before it must have been taken out.
    #[inline(always)]
    pub(crate) fn into_last(mut self) -> T {
        debug_assert_eq!(self.oldest, self.last, "values before the last are left");
        self.take_first()
    }

    /// Takes out the values before the last, and gives `f` each with its id. The poster sees their cells free at the
    /// end, also where `f` panics.
    #[inline(always)]
    pub(crate) fn each_before_last(&mut self, mut f: impl FnMut(u64, T)) {
        /// Accounts for the values that were taken out.
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
        self.put_with_others();
        let (at, end) = (self.at, self.last);
        let mut progress = Progress { at, next: self.oldest, oldest: &mut self.oldest };
        while progress.next != end {
            for cell in at.cells_between(progress.next, end) {
                let id = progress.next;
                // SAFETY: in flight (1), so the cell holds a value, written before the `posted` that this end acquired.
                let value = unsafe { cell.take() };
                progress.next = after(id, 1);
                f(id, value);
            }
        }
    }

    /// Moves the oldest value to its cell, if it is not there.
    #[inline(always)]
    fn put_with_others(&mut self) {
        // SAFETY: the oldest value is in flight (1), so the place is this end's (ledger 3).
        if let Some(alone) = self.at.alone.with_mut(|alone| unsafe { (*alone).take() }) {
            // SAFETY: in flight (1), so the cell is this end's (ledger 0), and it is empty, since the value was alone.
            unsafe { self.at.cell(self.oldest).put(alone) };
        }
    }

    /// The cells of the values from the oldest to before `end`, as far as they lie side by side. `end` is at most the
    /// id after the last.
    #[inline(always)]
    pub(super) fn row_to(&mut self, end: u64) -> &[Cell<T>] {
        self.put_with_others();
        self.at.cells_between(self.oldest, end)
    }

    /// Accounts for the oldest `count` values, which were taken out of their cells.
    #[inline(always)]
    pub(super) fn took(&mut self, count: u32) {
        self.oldest = after(self.oldest, count);
        self.at.set_oldest(self.oldest);
    }
}

/// Buffers, as many at once as possible: the fastest way out of a ledger.
impl Prefix<'_, Entry> {
    /// Puts all values into `free`, if all are buffers. Otherwise gives back a rest, which `free` does not have.
    #[inline(always)]
    pub(crate) fn into_buffers<B>(mut self, free: &mut Vec<Buffer<B>>) -> Result<(), Self> {
        free.reserve(self.ahead() as usize + 1);
        let end = after(self.last, 1);
        while self.take_row(free, end) {
            if self.oldest == end {
                return Ok(());
            }
        }
        Err(self)
    }

    /// Puts the values before the last into `free`, up to a part of the ledger with values that are no buffers.
    #[inline(always)]
    pub(crate) fn take_buffers_before_last<B>(&mut self, free: &mut Vec<Buffer<B>>) {
        free.reserve(self.ahead() as usize);
        while self.ahead() != 0 && self.take_row(free, self.last) {}
    }

    /// Takes out the values from the oldest to before `end`, as far as they lie side by side, if all of them are
    /// buffers and `free` has room for them. There must be one at least, and `end` is at most the id after the last.
    ///
    /// The loop copies the words first and asks afterwards whether all of them were buffers, so that the compiler makes
    /// it one of vector instructions.
    #[inline(always)]
    fn take_row<B>(&mut self, free: &mut Vec<Buffer<B>>, end: u64) -> bool {
        let row = self.row_to(end);
        let count = row.len();
        let Some(places) = free.spare_capacity_mut().get_mut(..count) else { return false };
        let mut bits = 0;
        for (cell, place) in row.iter().zip(places) {
            // SAFETY: in flight (1). If all are buffers this is the value from here on, else it is not used.
            let entry = ManuallyDrop::new(unsafe { cell.take() });
            bits |= entry.bits();
            *place = ManuallyDrop::into_inner(entry).into_maybe_buffer();
        }
        if !Entry::are_buffers(bits) {
            return false;
        }
        // SAFETY: `count` places were written behind the old length, each with a buffer.
        unsafe { free.set_len(free.len() + count) };
        self.took(count as u32);
        true
    }
}

/// A [`Retirer`] whose values are taken out in any order. Their cells come back to the poster in the order of posting.
pub(crate) struct AnyOrderRetirer<T> {
    retirer: Retirer<T>,
    /// # Invariants
    ///
    /// 0. A bit for each cell of the ledger: set while its id is in flight and the value has been taken out. The bit of
    ///    the oldest id is clear.
    taken: Vec<u64>,
}

impl<T> AnyOrderRetirer<T> {
    pub(crate) fn new(retirer: Retirer<T>) -> Self {
        let taken = vec![0; retirer.cells().div_ceil(u64::BITS) as usize];
        Self { retirer, taken }
    }

    /// Whether any value is left.
    pub(crate) fn has_any(&self) -> bool {
        // The oldest id in flight is one whose value was not taken (0).
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

    /// The word and the bit of an id.
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

    /// Takes the oldest value that is left out, of a work queue that the device is done with.
    pub(crate) fn take_oldest(&mut self, _: &Quiescent) -> Option<T> {
        let oldest = self.oldest()?;
        self.take(oldest)
    }

    /// Moves the value with this id to another ledger, which owns it from here on. False, without a change, if the
    /// value is not in flight or was moved before, or if the other ledger is full.
    pub(crate) fn move_to(&mut self, id: u64, other: &mut Poster<T>) -> bool {
        if other.free() == 0 {
            return false;
        }
        let Some(value) = self.take(id) else { return false };
        other.push(value);
        true
    }

    /// Takes the value with this id out; `None` if it is not in flight or was taken before. The device may still have
    /// its request.
    fn take(&mut self, id: u64) -> Option<T> {
        if !self.has(id) {
            return None;
        }
        let (at, mut oldest) = (self.retirer.0.0, self.retirer.oldest());
        // SAFETY: in flight and not taken before, and written before the `posted` that this end acquired; this end
        // retires.
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
    /// 0. `mask + 1` places, a power of two. A place that no queue has holds a retirer of `nothing`, so that a look at
    ///    any place needs no question.
    places: Vec<Retirer<T>>,
    mask: usize,
    nothing: Nothing<T>,
}

impl<T> Retirers<T> {
    pub(crate) fn new() -> Self {
        let nothing = Nothing::new();
        Self { places: vec![nothing.retirer()], mask: 0, nothing }
    }

    /// The retirer in the place that the low bits of the id name. An id of no queue may find the retirer of another
    /// queue, where it is not in flight.
    #[inline(always)]
    pub(crate) fn of(&mut self, id: u64) -> RetirerRef<'_, T> {
        // SAFETY: at most `mask`, so there is such a place (0).
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
            self.places.resize_with((slot + 1).next_power_of_two(), || self.nothing.retirer());
            self.mask = self.places.len() - 1;
        }
        if let Some(place) = self.places.get_mut(slot) {
            *place = retirer;
        }
    }

    /// Takes the retirer out of a slot.
    pub(crate) fn vacate(&mut self, slot: usize) -> Option<Retirer<T>> {
        let nothing = self.nothing.retirer();
        self.places.get_mut(slot).map(|place| core::mem::replace(place, nothing))
    }
}
