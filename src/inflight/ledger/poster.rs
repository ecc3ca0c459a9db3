//! The end of a ledger that posts.
#![allow(unsafe_code, reason = "a ring with two owners")]

use super::ring::{BLOCKED, CellRow, LedgerPtr, LedgerRef};
use super::{STEP, after, between};
use crate::inflight::unlikely;
use crate::sync::Ordering;
use core::{marker::PhantomData, ptr, ptr::NonNull};

/// The end of a ledger that posts: one word.
pub(crate) struct Poster<T, P = ()> {
    /// # Invariants
    ///
    /// 0. There is a `P` in the ledger's line, which nobody else uses; nor does anybody else write `posted`.
    pub(super) held: LedgerRef<T>,
    pub(super) own: PhantomData<P>,
}

impl<T, P> Drop for Poster<T, P> {
    fn drop(&mut self) {
        // SAFETY: nobody else's (0), and nobody's any more.
        unsafe { ptr::drop_in_place(self.own_mut()) };
    }
}

impl<T> Poster<T> {
    /// The same, which keeps its user's `own` in the ledger's line.
    pub(crate) fn with<P>(self, own: P) -> Poster<T, P> {
        let poster = Poster { held: self.held.clone(), own: PhantomData };
        // SAFETY: room that nobody else uses (0).
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
    fn own_at(&self) -> NonNull<P> {
        self.ledger().own()
    }

    /// What its user keeps here.
    #[inline(always)]
    pub(crate) fn own(&self) -> &P {
        // SAFETY: alive, and nobody else's (0).
        unsafe { self.own_at().as_ref() }
    }

    pub(crate) fn own_mut(&mut self) -> &mut P {
        // SAFETY: as above.
        unsafe { self.own_at().as_mut() }
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

    /// Where the next value goes.
    #[inline(always)]
    pub(crate) fn next(&self) -> Next<'_, T> {
        Next { ledger: self.ledger(), id: self.next_id(), poster: PhantomData }
    }

    /// How many requests fit.
    #[inline(always)]
    pub(crate) fn free(&self) -> u32 {
        // What is not of the depth is cut off.
        between(self.next().taken(), self.ledger().limit.load(Ordering::Relaxed))
    }

    /// How many values are in flight.
    pub(crate) fn outstanding(&self) -> u32 {
        between(0, self.next().taken())
    }

    /// The id of the next value.
    #[inline(always)]
    pub(crate) fn next_id(&self) -> u64 {
        // SAFETY: written by us alone (0).
        unsafe { self.ledger().posted_by_us() }
    }

    /// The id of the value that comes `ahead` after the next one.
    #[inline(always)]
    pub(crate) fn id_ahead(&self, ahead: u32) -> u64 {
        after(self.next_id(), ahead)
    }

    /// The cells for the values from `id` on, one of the next. To write to one is to [write ahead](Self::write_at).
    #[inline(always)]
    pub(crate) fn row(&self, id: u64) -> CellRow<T> {
        self.ledger().row(id)
    }

    /// Puts `value` in, as posting does. A full ledger gives it back.
    pub(crate) fn try_push(&mut self, value: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(value);
        }
        // SAFETY: there is room.
        unsafe { self.next().push(value) };
        Ok(())
    }

    /// Writes a value ahead of those in flight. Nobody sees it before it is [published](Self::publish).
    ///
    /// # Safety
    ///
    /// The id is less than what is [free](Self::free) after the next one, and nothing is written there.
    #[inline(always)]
    pub(crate) unsafe fn write_at(&self, id: u64, value: T) {
        // SAFETY: free, so ours (ledger 0), and empty (caller); the retirer left it before the `retired` that we acquired.
        unsafe { self.ledger().write(id, value) };
    }

    /// Drops the values before `end`, which were written ahead.
    ///
    /// # Safety
    ///
    /// They were written there, all from the next on, and neither published nor dropped since.
    #[cold]
    pub(crate) unsafe fn drop_ahead(&self, end: u64) {
        for ahead in 0..between(self.next_id(), end) {
            // SAFETY: written, and still ours (caller).
            drop(unsafe { self.ledger().read(self.id_ahead(ahead)) });
        }
    }

    /// Puts the values before `end` in, which were written ahead: they belong to the device from here on.
    #[inline(always)]
    pub(crate) fn publish(&mut self, end: u64) {
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
        self.publish(newest);
        // SAFETY: nothing is in flight any more; the retirer does not reach it (caller).
        let alone = if others == 0 { unsafe { self.ledger().take_alone() } } else { None };
        // SAFETY: was in flight, so its cell holds a value if it was not alone; the retirer does not reach it (caller).
        Some(alone.unwrap_or_else(|| unsafe { self.ledger().read(newest) }))
    }
}

/// Where the next value of a ledger goes, looked up once: a look at what retired lets the compiler keep nothing.
pub(crate) struct Next<'p, T> {
    ledger: LedgerPtr<T>,
    id: u64,
    /// Which keeps the ledger alive.
    poster: PhantomData<&'p Poster<T>>,
}

impl<T> Clone for Next<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Next<'_, T> {}

impl<'p, T> Next<'p, T> {
    #[inline(always)]
    pub(crate) fn id(self) -> u64 {
        self.id
    }

    /// From the oldest id in flight to this.
    #[inline(always)]
    fn taken(self) -> u64 {
        self.id.wrapping_sub(self.ledger.retired.load(Ordering::Acquire))
    }

    /// The place for one value, if there is no [`Detour`], and one fits, and `another` after it.
    #[inline(always)]
    pub(crate) fn open(self, another: bool) -> Option<Open<'p, T>> {
        let taken = self.taken();
        let needed = taken.wrapping_add(if another { STEP } else { 0 });
        (needed.cast_signed() < self.ledger.limit.load(Ordering::Relaxed).cast_signed())
            .then_some(Open { next: self, taken })
    }

    /// Whether one value fits, and `another` after it.
    #[inline(always)]
    pub(crate) fn has_room(self, another: bool) -> bool {
        let limit = self.ledger.limit.load(Ordering::Relaxed);
        between(self.taken(), limit) > u32::from(another)
    }

    /// Puts the next value in; it belongs to the device from here on.
    ///
    /// # Safety
    ///
    /// There is [room](Poster::free), and the caller is the only one who posts. Nothing was put in since this was looked up.
    #[inline(always)]
    pub(crate) unsafe fn push(self, value: T) {
        // SAFETY: the caller's promise.
        unsafe { Open { next: self, taken: self.taken() }.push(value) };
    }
}

/// Where there is room for the next value.
pub(crate) struct Open<'p, T> {
    next: Next<'p, T>,
    /// From the oldest id in flight to the next.
    taken: u64,
}

impl<T> Open<'_, T> {
    /// Puts the next value in; it belongs to the device from here on.
    ///
    /// # Safety
    ///
    /// The caller is the only one who posts. Nothing was put in since this was looked up.
    #[inline(always)]
    pub(crate) unsafe fn push(self, value: T) {
        let Next { ledger, id, .. } = self.next;
        if self.taken == 0 {
            // SAFETY: nothing is in flight, and we post (caller).
            unsafe { ledger.leave_alone(value) };
        } else {
            unlikely();
            // SAFETY: free, so ours (ledger 0), and empty; the retirer left it before the `retired` that we acquired.
            unsafe { ledger.write(id, value) };
        }
        // Before the verb: the completion may be polled before the verb returns.
        ledger.posted.store(after(id, 1), Ordering::Release);
    }
}

/// Why posts to a ledger cannot go the short way, bit by bit; 0 if they can. Kept where the ledger is, since each post writes
/// to that line anyway.
pub(crate) struct Detour<T>(pub(super) LedgerRef<T>);

impl<T> Detour<T> {
    pub(crate) fn bits(&self) -> u32 {
        self.0.0.detour()
    }

    /// Bits of [`STEP`] and above are none: the depth is there. Who [clears](Self::clear) them sees what was done before.
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
        // Never fails: there always is one.
        let _ = self.0.0.limit.fetch_update(Ordering::Acquire, Ordering::Relaxed, without);
    }
}
