//! The ledger: who owns what a work queue has in flight.
//!
//! One ring per work queue, made with the queue's depth. The [`Poster`] (with the queue pair) puts a value in when it posts;
//! the [`Retirer`] (with the poller of the completion queue) takes it out when its completion came, or when the queue
//! was proved quiescent. The two may be on two threads; neither locks nor allocates.
//!
//! ```text
//!            retired                 posted
//!               |                       |
//!   ....free....|....in flight..........|....free....      both counters only grow (mod 2^64)
//!               ^ Retirer takes here    ^ Poster puts here
//! ```
//!
//! A value that is posted while no other is in flight goes to no place of the ring, but beside the counters: so a queue with
//! one request at a time touches one line of the cache.
//!
//! It counts in ids: what is below [`STEP`] names the work queue and stays what it was in the first, what is above counts. So
//! an id that is not in flight differs from all that are, whatever it names.
//!
//! A value that nobody takes out is leaked with the ledger, never dropped: only completion or quiescence proves that
//! the device is done with it, and only the retirer learns of either.
#![allow(unsafe_code, reason = "a ring with two owners")]

mod ring;

use self::ring::{At, BLOCKED, Held};
use super::unlikely;
use crate::domain::Blocks;
use crate::sync::Ordering;
use core::{marker::PhantomData, ptr, ptr::NonNull};

pub(crate) use ring::{Origin, Row};
use std::sync::Arc;

/// The most requests that one work queue may have in flight.
pub(crate) const MAX_DEPTH: u32 = 1 << 22;
/// The bits of an id that name the work queue.
pub(crate) const NAME_BITS: u32 = 22;
/// From one id to the next.
pub(crate) const STEP: u64 = 1 << NAME_BITS;

/// The id that comes `ahead` after `id`.
#[inline(always)]
pub(crate) fn after(id: u64, ahead: u32) -> u64 {
    id.wrapping_add(u64::from(ahead) * STEP)
}

/// How many ids there are from `from` to before `to`, of one work queue.
#[inline(always)]
pub(crate) fn between(from: u64, to: u64) -> u32 {
    (to.wrapping_sub(from) >> NAME_BITS) as u32
}

/// Whether `id` is of a value that is in flight.
#[inline(always)]
fn is_between(oldest: u64, id: u64, posted: u64) -> bool {
    // What differs in the name comes out above all counts.
    id.wrapping_sub(oldest).rotate_right(NAME_BITS) < u64::from(between(oldest, posted))
}

/// A ledger for `depth` requests in flight, 1 to [`MAX_DEPTH`], of which the first has the id `first`, as its two ends.
pub(crate) fn ledger<T>(pool: &Arc<Blocks>, depth: u32, first: u64, origin: Origin) -> (Poster<T>, Retirer<T>) {
    let held = Held::new(pool, depth.clamp(1, MAX_DEPTH), first, origin);
    (Poster { held: held.clone(), own: PhantomData }, Retirer(held))
}

/// A ledger that nobody posts to.
pub(crate) struct Nothing<T>(Held<T>);

impl<T> Nothing<T> {
    pub(crate) fn new() -> Self {
        Self(ledger(&Arc::default(), 1, 0, Origin::default()).1.0)
    }

    /// One that never finds anything. There may be many.
    pub(crate) fn retirer(&self) -> Retirer<T> {
        Retirer(self.0.clone())
    }
}

/// The end of a ledger that posts: one word.
pub(crate) struct Poster<T, P = ()> {
    /// # Invariants
    ///
    /// 0. There is a `P` in the ledger's line, which nobody else uses; nor does anybody else write `posted`.
    held: Held<T>,
    own: PhantomData<P>,
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
    fn ledger(&self) -> At<T> {
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
    pub(crate) fn row(&self, id: u64) -> Row<T> {
        self.ledger().row(id)
    }

    /// Puts `value` in, as posting does. A full ledger gives it back.
    #[cfg(test)]
    pub(crate) fn try_push(&mut self, value: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(value);
        }
        // SAFETY: there is room.
        unsafe { self.next().push(value) };
        Ok(())
    }

    /// Lets the next value have this id, where none is in flight.
    ///
    /// # Safety
    ///
    /// The caller has both ends of the ledger, and no value is in flight.
    pub(crate) unsafe fn rename(&mut self, id: u64) {
        self.ledger().retired.store(id, Ordering::Release);
        self.ledger().posted.store(id, Ordering::Release);
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
    ledger: At<T>,
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
pub(crate) struct Detour<T>(Held<T>);

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

/// The end of a ledger that takes values out: one word, so that a poller has few lines to look at.
pub(crate) struct Retirer<T>(Held<T>);

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

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
