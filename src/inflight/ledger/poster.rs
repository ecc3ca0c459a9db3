//! The end of a ledger that posts.
#![allow(unsafe_code, reason = "a ring with two owners")]

use super::ring::{BLOCKED, CellRow, LedgerPtr, LedgerRef};
use super::{STEP, after, between};
use crate::inflight::unlikely;
use crate::sync::Ordering;
use core::marker::PhantomData;
use core::mem::{self, ManuallyDrop};

/// The end of a ledger that posts: one word.
pub(crate) struct Poster<T, P = ()> {
    /// # Invariants
    ///
    /// 0. The header of the ledger holds a `P`, which nobody but this poster uses. Nobody else writes `posted`: a
    ///    ledger has one poster.
    pub(super) held: LedgerRef<T>,
    pub(super) user_data: PhantomData<P>,
}

impl<T, P> Drop for Poster<T, P> {
    fn drop(&mut self) {
        // SAFETY: nobody but this poster uses the `P` (0), and this drop is its last use.
        unsafe { self.user_data_at().drop_in_place() };
    }
}

impl<T> Poster<T> {
    /// The same poster, which also keeps `data` for its user in the header of the ledger.
    pub(crate) fn with<P>(self, data: P) -> Poster<T, P> {
        let poster = Poster::<T, P> { held: self.held.clone(), user_data: PhantomData };
        // SAFETY: `self` ends here, so nobody else uses the room for user data (0).
        unsafe { poster.user_data_at().write(data) };
        poster
    }
}

impl<T, P> Poster<T, P> {
    #[inline(always)]
    fn ledger(&self) -> LedgerPtr<T> {
        self.held.0
    }

    #[inline(always)]
    fn user_data_at(&self) -> *mut P {
        self.ledger().user_data()
    }

    /// The data that the user keeps in the header of the ledger.
    #[inline(always)]
    pub(crate) fn user_data(&self) -> &P {
        // SAFETY: the data is alive, and nobody but this poster uses it (0).
        unsafe { &*self.user_data_at() }
    }

    pub(crate) fn user_data_mut(&mut self) -> &mut P {
        // SAFETY: the data is alive, and nobody but this poster uses it (0); `&mut self` makes this the only reference.
        unsafe { &mut *self.user_data_at() }
    }

    /// The flags that keep posts off the fast path: see [`Detour`].
    #[inline(always)]
    pub(crate) fn detour(&self) -> u32 {
        self.ledger().detour()
    }

    /// The handle that sets and clears the flags of [`detour`](Self::detour).
    pub(crate) fn detour_of(&self) -> Detour<T> {
        Detour(self.held.clone())
    }

    /// The slot for the next value. It borrows the poster, so nothing is posted in between.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> NextSlot<'_, T> {
        NextSlot { ledger: self.ledger(), id: self.next_id(), poster: PhantomData }
    }

    /// How many more requests fit.
    #[inline(always)]
    pub(crate) fn free(&self) -> u32 {
        // `between` drops the flags in the low bits of `limit`.
        between(self.taken(), self.ledger().limit.load(Ordering::Relaxed))
    }

    /// How many values are in flight.
    pub(crate) fn outstanding(&self) -> u32 {
        between(0, self.taken())
    }

    /// The distance from the oldest id in flight to the next id.
    #[inline(always)]
    fn taken(&self) -> u64 {
        taken(self.ledger(), self.next_id())
    }

    /// The id of the next value.
    #[inline(always)]
    pub(crate) fn next_id(&self) -> u64 {
        // Relaxed is enough: only this poster writes `posted` (0).
        self.ledger().posted.load(Ordering::Relaxed)
    }

    /// The id of the value that is posted `count` values after the next one.
    #[inline(always)]
    pub(crate) fn id_after(&self, count: u32) -> u64 {
        after(self.next_id(), count)
    }

    /// The cells for the values from `id` on, up to the end of the ring, and their number. A value that is written
    /// there is in flight only once it is [published](Self::publish).
    #[inline(always)]
    pub(crate) fn row(&self, id: u64) -> (CellRow<T>, u32) {
        self.ledger().row(id)
    }

    /// Posts `value`. The caller has checked that there is room. (A full ledger would leak the value.) Unlike
    /// [`NextSlot::if_free`], this ignores the [`Detour`].
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T) {
        let next = self.next();
        let taken = taken(next.ledger, next.id);
        if between(taken, next.ledger.limit.load(Ordering::Relaxed)) == 0 {
            return mem::forget(value);
        }
        FreeSlot { taken, next }.push(value);
    }

    /// Posts `value`. A full ledger gives the value back.
    pub(crate) fn try_push(&mut self, value: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(value);
        }
        self.push(value);
        Ok(())
    }

    /// Writes a value for an id that is not posted yet. Nobody sees the value before it is [published](Self::publish).
    ///
    /// # Safety
    ///
    /// Fewer than [`free`](Self::free) ids lie between the next id and `id`, and no value is written at `id`.
    #[cfg(test)]
    pub(crate) unsafe fn write_at(&mut self, id: u64, value: T) {
        // SAFETY: the cell of `id` is free, so it belongs to the poster (ledger 0), and it is empty (caller). The
        // retirer emptied it before it stored the `retired` that this poster has acquired.
        unsafe { self.ledger().cell(id).put(value) };
    }

    /// Drops the values before `end`, which are written and not published.
    ///
    /// # Safety
    ///
    /// Each id from the next one to before `end` was written, and was neither published nor dropped since.
    #[cold]
    pub(crate) unsafe fn drop_unpublished(&mut self, end: u64) {
        for count in 0..between(self.next_id(), end) {
            // SAFETY: the value is written, and still belongs to the poster (caller).
            drop(unsafe { self.ledger().cell(self.id_after(count)).take() });
        }
    }

    /// Publishes the values before `end`, which are written: the device owns them from here on.
    ///
    /// # Safety
    ///
    /// Each id from the next one to before `end` was written.
    #[inline(always)]
    pub(crate) unsafe fn publish(&mut self, end: u64) {
        // The values are published before the verb is called: a completion may be polled before the verb returns.
        self.ledger().posted.store(end, Ordering::Release);
    }

    /// Takes the newest value back.
    ///
    /// # Safety
    ///
    /// The device was not given the newest request. So neither it nor a later one completes, and the retirer does not
    /// reach the value.
    pub(crate) unsafe fn take_back(&mut self) -> Option<T> {
        let others = self.outstanding().checked_sub(1)?;
        let newest = self.next_id().wrapping_sub(STEP);
        self.ledger().posted.store(newest, Ordering::Release);
        // SAFETY: the value was in flight, and the retirer does not reach it (caller).
        Some(unsafe { self.ledger().take(newest, others == 0) })
    }
}

/// The distance from the oldest id in flight to `next_id`.
#[inline(always)]
fn taken<T>(ledger: LedgerPtr<T>, next_id: u64) -> u64 {
    next_id.wrapping_sub(ledger.retired.load(Ordering::Acquire))
}

/// The slot for the next value of a ledger. It keeps what was read once: after the atomic load of `retired` the
/// compiler would have to read everything again.
pub(crate) struct NextSlot<'p, T> {
    /// # Invariants
    ///
    /// 0. The ledger of the borrowed poster. So it is alive, and nobody else posts to it.
    ledger: LedgerPtr<T>,
    /// 1. The next id of the ledger.
    id: u64,
    poster: PhantomData<&'p mut Poster<T>>,
}

impl<'p, T> NextSlot<'p, T> {
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The slot, if no [`Detour`] flag is set and there is room for one value; with `another`, for two values.
    #[inline(always)]
    pub(crate) fn if_free(self, another: bool) -> Option<FreeSlot<'p, T>> {
        let taken = taken(self.ledger, self.id);
        let needed = taken.wrapping_add(if another { STEP } else { 0 });
        (needed.cast_signed() < self.ledger.limit.load(Ordering::Relaxed).cast_signed())
            .then_some(FreeSlot { next: self, taken })
    }

    /// The slot, if there is room for one value. Ignores the [`Detour`].
    #[inline(always)]
    pub(crate) fn if_room(self) -> Option<FreeSlot<'p, T>> {
        let taken = taken(self.ledger, self.id);
        let limit = self.ledger.limit.load(Ordering::Relaxed);
        (between(taken, limit) != 0).then_some(FreeSlot { next: self, taken })
    }

    /// Whether there is room for one value; with `another`, for two values. Ignores the [`Detour`].
    #[inline(always)]
    pub(crate) fn has_room(&self, another: bool) -> bool {
        let limit = self.ledger.limit.load(Ordering::Relaxed);
        between(taken(self.ledger, self.id), limit) > u32::from(another)
    }
}

/// A free slot for the next value.
pub(crate) struct FreeSlot<'p, T> {
    /// # Invariants
    ///
    /// 0. There is room for one value, and there will be when it is pushed: nobody else posts while the poster is
    ///    borrowed.
    next: NextSlot<'p, T>,
    /// 1. The distance from the oldest id in flight to the next one, as it was read. The distance can only shrink
    ///    since, so 0 stays 0.
    taken: u64,
}

impl<T> FreeSlot<'_, T> {
    /// Posts `value`: the device owns it from here on.
    #[inline(always)]
    pub(crate) fn push(self, value: T) {
        let NextSlot { ledger, id, .. } = self.next;
        if self.taken == 0 {
            // SAFETY: nothing is in flight (1), so the place of the sole value belongs to the poster (ledger 3), and it
            // is empty.
            ledger.sole.with_mut(|sole| unsafe { sole.write(ManuallyDrop::new(Some(value))) });
        } else {
            unlikely();
            // SAFETY: the slot is free (0), so its cell belongs to the poster (ledger 0), and it is empty. The retirer
            // emptied it before it stored the `retired` that this poster has acquired.
            unsafe { ledger.cell(id).put(value) };
        }
        // The value is published before the verb is called: its completion may be polled before the verb returns.
        ledger.posted.store(after(id, 1), Ordering::Release);
    }
}

/// Flags that keep posts to a ledger off the fast path; 0 if none is set. They are in the header of the ledger, which
/// each post writes to anyway.
pub(crate) struct Detour<T>(pub(super) LedgerRef<T>);

impl<T> Detour<T> {
    pub(crate) fn bits(&self) -> u32 {
        self.0.0.detour()
    }

    /// Sets the flags `bits`. Only bits below [`STEP`] are flags; the bits above hold the depth. Whoever
    /// [clears](Self::clear) the flags sees what was done before they were set.
    pub(crate) fn set(&self, bits: u32) {
        let bits = u64::from(bits) & (STEP - 1);
        if bits != 0 {
            self.0.0.limit.fetch_or(bits | BLOCKED, Ordering::Release);
        }
    }

    pub(crate) fn clear(&self, bits: u32) {
        let bits = u64::from(bits) & (STEP - 1);
        let without = |limit: u64| {
            let left = limit & !bits;
            Some(if left & (STEP - 1) == 0 { left & !BLOCKED } else { left })
        };
        // `fetch_update` never fails: `without` always returns a value.
        let _ = self.0.0.limit.fetch_update(Ordering::Acquire, Ordering::Relaxed, without);
    }
}
