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
    /// 0. There is a `P` in the ledger's line, which nobody else uses. Nobody else writes `posted`: there is one
    ///    poster.
    pub(super) held: LedgerRef<T>,
    pub(super) own: PhantomData<P>,
}

impl<T, P> Drop for Poster<T, P> {
    fn drop(&mut self) {
        // SAFETY: nobody else uses it (0), and this drop is its last use.
        unsafe { self.own_at().drop_in_place() };
    }
}

impl<T> Poster<T> {
    /// The same poster, which keeps `own` for its user in the ledger's line.
    pub(crate) fn with<P>(self, own: P) -> Poster<T, P> {
        let poster = Poster::<T, P> { held: self.held.clone(), own: PhantomData };
        // SAFETY: `self` ends here, so nobody else uses that room (0).
        unsafe { poster.own_at().write(own) };
        poster
    }
}

impl<T, P> Poster<T, P> {
    #[inline(always)]
    fn ledger(&self) -> LedgerPtr<T> {
        self.held.0
    }

    #[inline(always)]
    fn own_at(&self) -> *mut P {
        self.ledger().own()
    }

    /// What its user keeps in the ledger's line.
    #[inline(always)]
    pub(crate) fn own(&self) -> &P {
        // SAFETY: alive, and nobody else's (0).
        unsafe { &*self.own_at() }
    }

    pub(crate) fn own_mut(&mut self) -> &mut P {
        // SAFETY: alive, and nobody else's (0); `&mut` makes this the only reference.
        unsafe { &mut *self.own_at() }
    }

    /// What stands in the way of a post: see [`Detour`].
    #[inline(always)]
    pub(crate) fn detour(&self) -> u32 {
        self.ledger().detour()
    }

    /// Sets and clears what [`detour`](Self::detour) says.
    pub(crate) fn detour_of(&self) -> Detour<T> {
        Detour(self.held.clone())
    }

    /// Where the next value goes. It borrows the poster, so nothing is posted in between.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> NextSlot<'_, T> {
        NextSlot { ledger: self.ledger(), id: self.next_id(), poster: PhantomData }
    }

    /// How many requests fit.
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
        // Only this poster writes it (0).
        self.ledger().posted.load(Ordering::Relaxed)
    }

    /// The id of the value that comes `ahead` after the next one.
    #[inline(always)]
    pub(crate) fn id_ahead(&self, ahead: u32) -> u64 {
        after(self.next_id(), ahead)
    }

    /// The cells for the values from `id` on, up to the end of the ring, and their number. A write to one of them
    /// [writes ahead](Self::publish).
    #[inline(always)]
    pub(crate) fn row(&self, id: u64) -> (CellRow<T>, u32) {
        self.ledger().row(id)
    }

    /// Posts `value`, for which the caller has seen that there is room. (A full ledger would leak the value.) Unlike a
    /// [`FreeSlot`], this ignores the [`Detour`].
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

    /// Writes a value ahead of those in flight. Nobody sees the value before it is [published](Self::publish).
    ///
    /// # Safety
    ///
    /// Fewer than [`free`](Self::free) ids lie between the next id and this one, and nothing is written at this one.
    #[cfg(test)]
    pub(crate) unsafe fn write_at(&mut self, id: u64, value: T) {
        // SAFETY: the slot is free, so the cell is ours (ledger 0), and it is empty (caller). The retirer emptied it
        // before the `retired` that we acquired.
        unsafe { self.ledger().cell(id).put(value) };
    }

    /// Drops the values before `end`, which were written ahead.
    ///
    /// # Safety
    ///
    /// Each id from the next one to before `end` was written, and was neither published nor dropped since.
    #[cold]
    pub(crate) unsafe fn drop_ahead(&mut self, end: u64) {
        for ahead in 0..between(self.next_id(), end) {
            // SAFETY: written, and still ours (caller).
            drop(unsafe { self.ledger().cell(self.id_ahead(ahead)).take() });
        }
    }

    /// Posts the values before `end`, which were written ahead: the device owns them from here on.
    ///
    /// # Safety
    ///
    /// Each id from the next one to before `end` was written.
    #[inline(always)]
    pub(crate) unsafe fn publish(&mut self, end: u64) {
        // Before the verb: the completion may be polled before the verb returns.
        self.ledger().posted.store(end, Ordering::Release);
    }

    /// Takes the newest value back.
    ///
    /// # Safety
    ///
    /// The device was not given the request, so neither it nor a later one completes: the retirer does not reach it.
    pub(crate) unsafe fn take_back(&mut self) -> Option<T> {
        let others = self.outstanding().checked_sub(1)?;
        let newest = self.next_id().wrapping_sub(STEP);
        self.ledger().posted.store(newest, Ordering::Release);
        // SAFETY: it was in flight; the retirer does not reach it (caller).
        Some(unsafe { self.ledger().take(newest, others == 0) })
    }
}

/// The distance from the oldest id in flight to `next_id`.
#[inline(always)]
fn taken<T>(ledger: LedgerPtr<T>, next_id: u64) -> u64 {
    next_id.wrapping_sub(ledger.retired.load(Ordering::Acquire))
}

/// Where the next value of a ledger goes. Looked up once: after the atomic load of `retired` the compiler would have to
/// read everything again.
pub(crate) struct NextSlot<'p, T> {
    /// # Invariants
    ///
    /// 0. The ledger of the borrowed poster, so it is alive, and nobody else posts to it.
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

    /// The slot, if there is no [`Detour`] and one value fits; with `another`, if two values fit.
    #[inline(always)]
    pub(crate) fn if_free(self, another: bool) -> Option<FreeSlot<'p, T>> {
        let taken = taken(self.ledger, self.id);
        let needed = taken.wrapping_add(if another { STEP } else { 0 });
        (needed.cast_signed() < self.ledger.limit.load(Ordering::Relaxed).cast_signed())
            .then_some(FreeSlot { next: self, taken })
    }

    /// The slot, if one value fits. Ignores the [`Detour`].
    #[inline(always)]
    pub(crate) fn if_room(self) -> Option<FreeSlot<'p, T>> {
        let taken = taken(self.ledger, self.id);
        let limit = self.ledger.limit.load(Ordering::Relaxed);
        (between(taken, limit) != 0).then_some(FreeSlot { next: self, taken })
    }

    /// Whether one value fits; with `another`, whether two do. Ignores the [`Detour`].
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
    /// 0. There is room for the value. There still is when it comes: nobody else posts while the poster is borrowed.
    next: NextSlot<'p, T>,
    /// 1. The distance from the oldest id in flight to the next one. It can only shrink; 0 stays 0.
    taken: u64,
}

impl<T> FreeSlot<'_, T> {
    /// Posts `value`: the device owns it from here on.
    #[inline(always)]
    pub(crate) fn push(self, value: T) {
        let NextSlot { ledger, id, .. } = self.next;
        if self.taken == 0 {
            // SAFETY: nothing is in flight (1), so the place is this side's (ledger 3), and it is empty.
            ledger.alone.with_mut(|alone| unsafe { alone.write(ManuallyDrop::new(Some(value))) });
        } else {
            unlikely();
            // SAFETY: the slot is free (0), so the cell is ours (ledger 0), and it is empty. The retirer emptied it
            // before the `retired` that we acquired.
            unsafe { ledger.cell(id).put(value) };
        }
        // Before the verb: the completion may be polled before the verb returns.
        ledger.posted.store(after(id, 1), Ordering::Release);
    }
}

/// Flags that keep posts to a ledger from taking the short way; 0 if nothing does. They are kept in the ledger's line,
/// which each post writes to anyway.
pub(crate) struct Detour<T>(pub(super) LedgerRef<T>);

impl<T> Detour<T> {
    pub(crate) fn bits(&self) -> u32 {
        self.0.0.detour()
    }

    /// Sets `bits`. Only bits below [`STEP`] are flags; those above hold the depth. Whoever [clears](Self::clear) the
    /// flags sees what was done before they were set.
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
        // Never fails: `without` always returns a value.
        let _ = self.0.0.limit.fetch_update(Ordering::Acquire, Ordering::Relaxed, without);
    }
}
