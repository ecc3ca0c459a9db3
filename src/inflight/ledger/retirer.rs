//! The end of a ledger that takes values out.
#![allow(unsafe_code, reason = "a ring with two owners")]

use super::ring::{At, Held, Origin, Row};
use super::{after, between, is_between};
use crate::sync::Ordering;
use core::marker::PhantomData;

/// The end of a ledger that takes values out: one word, so that a poller has few lines to look at.
pub(crate) struct Retirer<T>(pub(super) Held<T>);

impl<T> Retirer<T> {
    #[inline(always)]
    pub(crate) fn lend(&mut self) -> Retiring<'_, T> {
        self.view()
    }

    /// To look at it only.
    #[inline(always)]
    fn view(&self) -> Retiring<'_, T> {
        Retiring(self.0.0, PhantomData)
    }

    /// The id of the oldest value in flight; of the next if there is none.
    pub(crate) fn oldest(&self) -> u64 {
        self.view().oldest()
    }

    pub(crate) fn origin(&self) -> Origin {
        self.view().origin()
    }

    /// How many cells there are, a power of two.
    pub(crate) fn cells(&self) -> u32 {
        self.0.0.cells()
    }

    /// Takes the oldest value out of a queue that is quiescent.
    pub(crate) fn take(&mut self) -> Option<T> {
        let mut this = self.lend();
        let oldest = this.oldest();
        // SAFETY: at least one value is in flight.
        (this.posted() != oldest).then(|| unsafe { this.take_oldest(oldest) })
    }

    /// Whether any value is in flight.
    pub(crate) fn has_any(&self) -> bool {
        let this = self.view();
        this.posted() != this.oldest()
    }

    /// Takes the oldest value out, as the poller does for the completion of the request with `id`; says how many requests
    /// were ahead of that one.
    #[cfg(test)]
    pub(crate) fn retire(&mut self, id: u64) -> Option<(T, u32)> {
        let mut this = self.lend();
        let oldest = this.oldest_up_to(id)?;
        // SAFETY: it is in flight.
        Some((unsafe { this.take_oldest(oldest) }, between(oldest, id)))
    }
}

/// A [`Retirer`], lent: what takes values out, in a register.
pub(crate) struct Retiring<'r, T>(At<T>, PhantomData<&'r mut Retirer<T>>);

impl<T> Retiring<'_, T> {
    /// Where those in flight end. Looked up each time: a poster that takes a value back lowers `posted`, and what it puts
    /// there next must be seen.
    #[inline(always)]
    fn posted(&self) -> u64 {
        self.0.posted.load(Ordering::Acquire)
    }

    /// The id of the oldest value in flight; of the next if there is none.
    #[inline(always)]
    pub(crate) fn oldest(&self) -> u64 {
        self.0.retired.load(Ordering::Relaxed)
    }

    /// What was before `oldest` is out: its slots are the poster's.
    #[inline(always)]
    fn set_oldest(&mut self, oldest: u64) {
        self.0.retired.store(oldest, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn origin(&self) -> Origin {
        self.0.origin
    }

    /// The id of the oldest value in flight, if the one with this `id` is in flight too.
    #[inline(always)]
    pub(crate) fn oldest_up_to(&self, id: u64) -> Option<u64> {
        let oldest = self.oldest();
        is_between(oldest, id, self.posted()).then_some(oldest)
    }

    /// The values from the `oldest` to before `end`, which are in flight, as far as they are in a row.
    ///
    /// # Safety
    ///
    /// So they are.
    #[inline(always)]
    pub(crate) unsafe fn row(&mut self, oldest: u64, end: u64) -> Row<T> {
        // SAFETY: in flight (caller).
        unsafe { self.put_with_others(oldest) };
        self.0.row(oldest).at_most(between(oldest, end))
    }

    /// Puts the oldest value where the others are, if it is alone.
    ///
    /// # Safety
    ///
    /// It has the id `oldest`, and is in flight.
    #[inline(always)]
    unsafe fn put_with_others(&mut self, oldest: u64) {
        // SAFETY: in flight (caller), and we retire.
        if let Some(alone) = unsafe { self.0.take_alone() } {
            // SAFETY: in flight, so the cell is ours (ledger 0), and empty.
            unsafe { self.0.write(oldest, alone) };
        }
    }

    /// Takes the value with this `id` out, if it is the oldest in flight.
    #[inline(always)]
    pub(crate) fn take_if_oldest(&mut self, id: u64) -> Option<T> {
        if id != self.oldest() || id == self.posted() {
            return None;
        }
        // SAFETY: in flight.
        Some(unsafe { self.take_oldest(id) })
    }

    /// Accounts for the values before `end`.
    ///
    /// # Safety
    ///
    /// They were [copied](Row::copy) or [taken](Self::take_at) out, and are used there only.
    #[inline(always)]
    pub(crate) unsafe fn took(&mut self, end: u64) {
        self.set_oldest(end);
    }

    /// Takes the value with this `id` out and leaves its place in flight, until [`took`](Self::took) says otherwise.
    ///
    /// # Safety
    ///
    /// It is in flight, and was not taken out before.
    pub(crate) unsafe fn take_at(&mut self, id: u64) -> T {
        // SAFETY: the oldest is in flight, and we retire.
        match if id == self.oldest() { unsafe { self.0.take_alone() } } else { None } {
            Some(alone) => alone,
            // SAFETY: in flight, so it holds a value that is ours to take (ledger 0), which was not taken before (caller).
            None => unsafe { self.0.read(id) },
        }
    }

    /// Takes the oldest value out, which has this `id`.
    ///
    /// # Safety
    ///
    /// So it has, and is in flight.
    #[inline(always)]
    pub(crate) unsafe fn take_oldest(&mut self, id: u64) -> T {
        // SAFETY: in flight, and we retire.
        let value = match unsafe { self.0.take_alone() } {
            Some(value) => value,
            // SAFETY: in flight, so it holds a value that is ours to take (ledger 0), written before the `posted` that we
            // acquired.
            None => unsafe { self.0.read(id) },
        };
        self.set_oldest(after(id, 1));
        value
    }

    /// Takes the values from the `oldest` to before `end` out, and gives `f` each with its id; says by `oldest` how far it
    /// came. The poster sees their slots free at the end.
    ///
    /// # Safety
    ///
    /// They are in flight.
    #[inline(always)]
    pub(crate) unsafe fn take_each(&mut self, oldest: &mut u64, end: u64, mut f: impl FnMut(u64, T)) {
        /// Accounts for what was taken, also when `f` panics.
        struct Taken<'t, 'r, T> {
            retirer: &'t mut Retiring<'r, T>,
            oldest: &'t mut u64,
            at: u64,
        }
        impl<T> Drop for Taken<'_, '_, T> {
            #[inline(always)]
            fn drop(&mut self) {
                *self.oldest = self.at;
                self.retirer.set_oldest(self.at);
            }
        }
        // SAFETY: in flight (caller).
        unsafe { self.put_with_others(*oldest) };
        let ledger = self.0;
        let mut taken = Taken { at: *oldest, oldest, retirer: self };
        while taken.at != end {
            let mut row = ledger.row(taken.at);
            let row_end = after(taken.at, row.len().min(between(taken.at, end)));
            while taken.at != row_end {
                let id = taken.at;
                // SAFETY: as in `take_oldest`; the row ends later.
                let value = unsafe { row.read() };
                taken.at = after(id, 1);
                f(id, value);
            }
        }
    }
}
