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
//! It counts in ids: what is below [`STEP`] names the work queue and stays what it was in the first, what is above counts. So
//! an id that is not in flight differs from all that are, whatever it names.
//!
//! A value that nobody takes out is leaked with the ledger, never dropped: only completion or quiescence proves that
//! the device is done with it, and only the retirer learns of either.
#![allow(unsafe_code, reason = "a ring of cells with two owners")]

use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr;

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

/// The same. Apart, so that the compare before it is one.
#[inline(never)]
fn is_between_apart(oldest: u64, id: u64, posted: u64) -> bool {
    is_between(oldest, id, posted)
}

/// The ring: all that both sides have in common in one line, since where many rings take turns each line is a miss. (Two threads
/// hand over `posted` with each value anyway, so that `retired` beside it costs them less than a nanosecond.)
#[repr(align(64))]
pub(crate) struct Ledger<T> {
    /// # Invariants
    ///
    /// 0. Of the cells, those from `retired` to `posted` hold a value; the retirer alone touches them, the poster all
    ///    others. (A poster that takes its newest value back lowers `posted` first.)
    posted: AtomicU64,
    /// 1. Written by the retirer alone.
    retired: AtomicU64,
    /// 2. The ledger's own, freed with it.
    cells: Cells<T>,
    /// See [`Detour`].
    detour: AtomicU32,
    origin: Origin,
}

#[cfg(not(loom))]
static_assertions::const_assert_eq!(size_of::<Ledger<()>>(), 64);

impl<T> Drop for Ledger<T> {
    fn drop(&mut self) {
        let Cells { first, mask, .. } = self.cells;
        let cells = ptr::slice_from_raw_parts_mut(first.cast_mut(), mask as usize + 1);
        // SAFETY: made of a box (`Cells::new`); nobody has the ledger any more (2). Values in them are not dropped.
        drop(unsafe { Box::from_raw(cells) });
    }
}

/// What completions tell of the queue pair that a work queue is of.
#[derive(Clone, Copy, Default)]
pub(crate) struct Origin {
    pub(crate) qpn: u32,
    /// A message comes with a header.
    pub(crate) datagrams: bool,
}

// SAFETY: a slot is touched by one side at a time (0), and counters hand it over with release and acquire.
unsafe impl<T: Send> Send for Ledger<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Ledger<T> {}

type Cell<T> = UnsafeCell<MaybeUninit<T>>;

/// The cells of a ledger.
struct Cells<T> {
    /// # Invariants
    ///
    /// 0. The first of `mask + 1` cells, a power of two, of a ledger that whoever holds this keeps alive.
    first: *const Cell<T>,
    mask: u32,
    /// How many of them are used at a time.
    depth: u32,
}

impl<T> Clone for Cells<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Cells<T> {}

impl<T> Cells<T> {
    /// At least `depth` of them.
    fn new(depth: u32) -> Self {
        let cells: Box<[Cell<T>]> =
            (0..depth.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        let mask = cells.len() as u32 - 1;
        Self { first: Box::into_raw(cells).cast(), mask, depth }
    }

    /// The cell of an id, with those that follow it in memory.
    #[inline(always)]
    fn row(&self, id: u64) -> Row<T> {
        let index = (id >> NAME_BITS) as u32 & self.mask;
        Row { next: self.first.wrapping_add(index as usize), len: self.mask - index + 1 }
    }

    /// Moves the value out of a cell.
    ///
    /// # Safety
    ///
    /// It holds one, which is the caller's (ledger 0), and is not used there any more.
    #[inline(always)]
    unsafe fn read(&self, id: u64) -> T {
        // SAFETY: the caller's promise.
        unsafe { self.row(id).read() }
    }

    /// Moves a value into a cell.
    ///
    /// # Safety
    ///
    /// It holds none, and is the caller's (ledger 0).
    #[inline(always)]
    unsafe fn write(&self, id: u64, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.row(id).write(value) };
    }
}

/// Cells one after the other, whose ids are so too.
pub(crate) struct Row<T> {
    /// # Invariants
    ///
    /// 0. So many cells of a ledger from `next` on, which whoever holds this keeps alive.
    next: *const Cell<T>,
    len: u32,
}

impl<T> Row<T> {
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// As much of it, if it is longer.
    #[inline(always)]
    pub(crate) fn at_most(self, len: u32) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// The next of the cells.
    ///
    /// # Safety
    ///
    /// There is one: `len` counts them.
    #[inline(always)]
    unsafe fn next(&mut self) -> &Cell<T> {
        let cell = self.next;
        (self.next, self.len) = (cell.wrapping_add(1), self.len.wrapping_sub(1));
        // SAFETY: alive (0, caller).
        unsafe { &*cell }
    }

    /// A copy of the value in the cell that is `at` after the next.
    ///
    /// # Safety
    ///
    /// There is one, and it holds a value, which is the caller's (ledger 0). Either the copy or what is in the cell is used.
    #[inline(always)]
    pub(crate) unsafe fn copy(&self, at: u32) -> ManuallyDrop<T> {
        // SAFETY: alive (0, caller).
        let cell = unsafe { &*self.next.wrapping_add(at as usize) };
        // SAFETY: the caller's promise; `MaybeUninit<T>` and `T` have one layout.
        cell.with_mut(|slot| unsafe { slot.cast::<ManuallyDrop<T>>().read() })
    }

    /// Moves the value out of the next cell.
    ///
    /// # Safety
    ///
    /// There is one, it holds a value, which is the caller's (ledger 0), and is not used there any more.
    #[inline(always)]
    unsafe fn read(&mut self) -> T {
        // SAFETY: the caller's promise; `MaybeUninit<T>` and `T` have one layout.
        unsafe { self.next() }.with_mut(|slot| unsafe { slot.cast::<T>().read() })
    }

    /// Moves a value into the next cell.
    ///
    /// # Safety
    ///
    /// There is one, it holds no value, and is the caller's (ledger 0).
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, value: T) {
        // SAFETY: as above.
        unsafe { self.next() }.with_mut(|slot| unsafe { slot.cast::<T>().write(value) });
    }
}

/// A ledger for `depth` requests in flight, 1 to [`MAX_DEPTH`], of which the first has the id `first`, as its two ends.
pub(crate) fn ledger<T>(depth: u32, first: u64, origin: Origin) -> (Poster<T>, Retirer<T>) {
    let depth = depth.clamp(1, MAX_DEPTH);
    let cells = Cells::new(depth);
    let (posted, retired, detour) = (AtomicU64::new(first), AtomicU64::new(first), AtomicU32::new(0));
    let ledger = Arc::new(Ledger { posted, retired, cells, detour, origin });
    let poster = Poster { cells, posted: first, end: after(first, depth), ledger: Arc::clone(&ledger) };
    (poster, Retirer(ledger))
}

/// A ledger that nobody posts to.
pub(crate) struct Nothing<T>(Arc<Ledger<T>>);

impl<T> Nothing<T> {
    pub(crate) fn new() -> Self {
        Self(ledger(1, 0, Origin::default()).1.0)
    }

    /// One that never finds anything. There may be many.
    pub(crate) fn retirer(&self) -> Retirer<T> {
        Retirer(Arc::clone(&self.0))
    }
}

/// The end of a ledger that posts.
#[repr(C)]
pub(crate) struct Poster<T> {
    cells: Cells<T>,
    /// # Invariants
    ///
    /// 0. The ledger's `posted`, which nobody else writes.
    posted: u64,
    /// Where the free slots end: at most the ledger's `retired` plus the depth; looked up again only when the queue
    /// seems full.
    end: u64,
    ledger: Arc<Ledger<T>>,
}

// SAFETY: the cells are the ledger's, which may be used from any thread.
unsafe impl<T: Send> Send for Poster<T> {}
// SAFETY: shared access reads numbers only.
unsafe impl<T: Send> Sync for Poster<T> {}

impl<T> Poster<T> {
    /// What stands in the way of a post: see [`Detour`].
    #[inline(always)]
    pub(crate) fn detour(&self) -> u32 {
        self.ledger.detour.load(Ordering::Relaxed)
    }

    /// Sets and clears what [`detour`](Self::detour) says.
    pub(crate) fn detour_of(&self) -> Detour<T> {
        Detour(Arc::clone(&self.ledger))
    }

    /// How many requests fit, as far as is known: no more than do.
    #[inline(always)]
    pub(crate) fn free_known(&self) -> u32 {
        between(self.posted, self.end)
    }

    /// Whether one fits, as far as is known, and `another` after it.
    #[inline(always)]
    pub(crate) fn has_room(&self, another: bool) -> bool {
        if another { self.free_known() > 1 } else { self.end != self.posted }
    }

    /// How many requests fit: not fewer than one, if one does.
    #[inline(always)]
    pub(crate) fn free(&mut self) -> u32 {
        let free = self.free_known();
        if free != 0 { free } else { self.free_in_the_end() }
    }

    #[cold]
    #[inline(never)]
    fn free_in_the_end(&mut self) -> u32 {
        self.free_now()
    }

    /// How many requests fit now. Where many are wanted, to look each time is cheaper than to find out whether to.
    #[inline(always)]
    pub(crate) fn free_now(&mut self) -> u32 {
        self.end = after(self.ledger.retired.load(Ordering::Acquire), self.cells.depth);
        self.free_known()
    }

    /// How many values are in flight.
    pub(crate) fn outstanding(&self) -> u32 {
        between(self.ledger.retired.load(Ordering::Acquire), self.posted)
    }

    /// The id of the next value.
    #[inline(always)]
    pub(crate) fn next_id(&self) -> u64 {
        self.posted
    }

    /// The id of the value that comes `ahead` after the next one.
    #[inline(always)]
    pub(crate) fn id_ahead(&self, ahead: u32) -> u64 {
        after(self.posted, ahead)
    }

    /// The cells for the values from `id` on, one of the next. To write to one is to [write ahead](Self::write_at).
    #[inline(always)]
    pub(crate) fn row(&self, id: u64) -> Row<T> {
        self.cells.row(id)
    }

    /// Puts the value with the next `id` in; it belongs to the device from here on.
    ///
    /// # Safety
    ///
    /// The id is [`next_id`](Self::next_id), and there is [room](Self::free).
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, id: u64, value: T) {
        // SAFETY: free, so ours (ledger 0), and empty; the retirer left it before the `retired` that we acquired.
        unsafe { self.cells.write(id, value) };
        self.posted = after(id, 1);
        // Before the verb: the completion may be polled before the verb returns.
        self.ledger.posted.store(self.posted, Ordering::Release);
    }

    /// Puts `value` in, as posting does. A full ledger gives it back.
    #[cfg(test)]
    pub(crate) fn try_push(&mut self, value: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(value);
        }
        // SAFETY: there is room.
        unsafe { self.push(self.posted, value) };
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
        unsafe { self.cells.write(id, value) };
    }

    /// Drops the values before `end`, which were written ahead.
    ///
    /// # Safety
    ///
    /// They were written there, all from the next on, and neither published nor dropped since.
    #[cold]
    pub(crate) unsafe fn drop_ahead(&self, end: u64) {
        for ahead in 0..between(self.posted, end) {
            // SAFETY: written, and still ours (caller).
            drop(unsafe { self.cells.read(self.id_ahead(ahead)) });
        }
    }

    /// Puts the values before `end` in, which were written ahead: they belong to the device from here on.
    #[inline(always)]
    pub(crate) fn publish(&mut self, end: u64) {
        self.posted = end;
        // Before the verb: the completion may be polled before the verb returns.
        self.ledger.posted.store(end, Ordering::Release);
    }

    /// Takes the newest value back.
    ///
    /// # Safety
    ///
    /// The device was not given the request, so neither it nor a later one completes: the retirer does not reach it.
    pub(crate) unsafe fn take_back(&mut self) -> Option<T> {
        if self.outstanding() == 0 {
            return None;
        }
        self.posted = self.posted.wrapping_sub(STEP);
        self.ledger.posted.store(self.posted, Ordering::Release);
        // SAFETY: was in flight, so it holds a value; the retirer does not reach it (caller).
        Some(unsafe { self.cells.read(self.posted) })
    }
}

/// Why posts to a ledger cannot go the short way, bit by bit; 0 if they can. Kept where the ledger is, since each post writes
/// to that line anyway.
pub(crate) struct Detour<T>(Arc<Ledger<T>>);

impl<T> Detour<T> {
    pub(crate) fn bits(&self) -> u32 {
        self.0.detour.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, bits: u32) {
        self.0.detour.fetch_or(bits, Ordering::Relaxed);
    }

    pub(crate) fn clear(&self, bits: u32) {
        self.0.detour.fetch_and(!bits, Ordering::Relaxed);
    }
}

/// The end of a ledger that takes values out: one word, so that a poller has few lines to look at.
pub(crate) struct Retirer<T>(Arc<Ledger<T>>);

impl<T> Retirer<T> {
    #[inline(always)]
    pub(crate) fn lend(&mut self) -> Retiring<'_, T> {
        Retiring(&self.0)
    }

    /// The id of the oldest value in flight; of the next if there is none.
    pub(crate) fn oldest(&self) -> u64 {
        Retiring(&self.0).oldest()
    }

    pub(crate) fn origin(&self) -> Origin {
        Retiring(&self.0).origin()
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
        let this = Retiring(&self.0);
        this.posted() != this.oldest()
    }

    /// Takes the oldest value out, as the poller does for the completion of the request with `id`; says how many requests
    /// were ahead of that one.
    #[cfg(test)]
    pub(crate) fn retire(&mut self, id: u64) -> Option<(T, u32)> {
        let mut this = self.lend();
        let oldest = this.oldest_before(id)?;
        // SAFETY: it is in flight.
        Some((unsafe { this.take_oldest(oldest) }, between(oldest, id)))
    }
}

/// A [`Retirer`], lent: what takes values out, in a register.
pub(crate) struct Retiring<'r, T>(&'r Ledger<T>);

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
    fn cells(&self) -> Cells<T> {
        self.0.cells
    }

    #[inline(always)]
    pub(crate) fn origin(&self) -> Origin {
        self.0.origin
    }

    /// The id of the oldest value in flight, if the one with this `id` is in flight too.
    #[inline(always)]
    pub(crate) fn oldest_before(&self, id: u64) -> Option<u64> {
        let (oldest, posted) = (self.oldest(), self.posted());
        if id == oldest {
            return if id == posted { None } else { Some(id) };
        }
        is_between_apart(oldest, id, posted).then_some(oldest)
    }

    /// The same, where it is often not the oldest.
    #[inline(always)]
    pub(crate) fn oldest_up_to(&self, id: u64) -> Option<u64> {
        let oldest = self.oldest();
        is_between(oldest, id, self.posted()).then_some(oldest)
    }

    /// The values from the `oldest` to before `end`, which are in flight, as far as they are in a row.
    #[inline(always)]
    pub(crate) fn row(&self, oldest: u64, end: u64) -> Row<T> {
        self.cells().row(oldest).at_most(between(oldest, end))
    }

    /// Accounts for the values before `end`.
    ///
    /// # Safety
    ///
    /// They were [copied](Row::copy) out, and the copies are used instead.
    #[inline(always)]
    pub(crate) unsafe fn took(&mut self, end: u64) {
        self.set_oldest(end);
    }

    /// Takes the oldest value out, which has this `id`.
    ///
    /// # Safety
    ///
    /// So it has, and is in flight.
    #[inline(always)]
    pub(crate) unsafe fn take_oldest(&mut self, id: u64) -> T {
        // SAFETY: in flight, so it holds a value that is ours to take (ledger 0), written before the `posted` that we
        // acquired.
        let value = unsafe { self.cells().read(id) };
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
        let cells = self.cells();
        let mut taken = Taken { at: *oldest, oldest, retirer: self };
        while taken.at != end {
            let mut row = cells.row(taken.at);
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
mod models {
    //! Every interleaving of a poster and a retirer on two threads.
    use super::*;
    use crate::sync::AtomicU32;
    use loom::thread;

    fn new<T>(depth: u32, first: u64) -> (Poster<T>, Retirer<T>) {
        ledger(depth, first, Origin::default())
    }

    /// Polls until `wanted` values are out, and checks that they come in order.
    fn retire(retirer: &mut Retirer<u32>, wanted: u32) {
        let mut next = 0;
        while next < wanted {
            match retirer.take() {
                Some(value) => {
                    assert_eq!(value, next);
                    next += 1;
                }
                None => thread::yield_now(),
            }
        }
    }

    #[test]
    fn no_value_is_lost_or_taken_twice() {
        loom::model(|| {
            let (mut poster, mut retirer) = new(2, 0);
            let posting = thread::spawn(move || {
                for value in 0..3 {
                    while poster.try_push(value).is_err() {
                        thread::yield_now();
                    }
                }
            });
            retire(&mut retirer, 3);
            posting.join().unwrap();
            assert_eq!(retirer.take(), None);
        });
    }

    #[test]
    fn a_value_taken_back_is_never_seen_by_the_retirer() {
        loom::model(|| {
            let (mut poster, mut retirer) = new(2, 0);
            let (sent, completed) = (Arc::new(AtomicU32::new(0)), ());
            let device = Arc::clone(&sent);
            let posting = thread::spawn(move || {
                let () = completed;
                poster.try_push(0).unwrap();
                device.store(1, Ordering::Release);
                poster.try_push(7).unwrap();
                // SAFETY: this model's device completes the first request only.
                assert_eq!(unsafe { poster.take_back() }, Some(7));
                poster.try_push(1).unwrap();
                device.store(2, Ordering::Release);
            });
            for (count, index) in [(1, 0), (2, 1)] {
                while sent.load(Ordering::Acquire) < count {
                    thread::yield_now();
                }
                assert_eq!(retirer.retire(after(0, index)), Some((index, 0)));
            }
            posting.join().unwrap();
        });
    }

    /// A batch is staged and taken back while the poller looks; then the pair is destroyed. The poller must not find what
    /// was taken back.
    #[test]
    fn a_value_taken_back_is_never_an_orphan() {
        loom::model(|| {
            let (mut poster, mut retirer) = new(4, 0);
            poster.try_push(0).unwrap();
            let destroyed = Arc::new(AtomicU32::new(0));
            let destroy = Arc::clone(&destroyed);
            let posting = thread::spawn(move || {
                poster.try_push(7).unwrap();
                // SAFETY: the device was not told of it.
                assert_eq!(unsafe { poster.take_back() }, Some(7));
                drop(poster);
                destroy.store(1, Ordering::Release);
            });
            assert_eq!(retirer.retire(0), Some((0, 0)));
            while destroyed.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            assert_eq!(retirer.take(), None);
            posting.join().unwrap();
        });
    }

    /// What a poller notes of a request before it takes it out is known to who then finds nothing in flight.
    #[test]
    fn a_detour_of_what_was_in_flight_is_not_set_after_it_was_cleared() {
        loom::model(|| {
            let (mut poster, mut retirer) = new(1, 0);
            let noted = poster.detour_of();
            poster.try_push(0).unwrap();
            let polling = thread::spawn(move || (noted.set(1), retirer.retire(0)).1);
            while poster.outstanding() != 0 {
                thread::yield_now();
            }
            poster.detour_of().clear(1);
            assert_eq!((polling.join().unwrap(), poster.detour()), (Some((0, 0)), 0));
        });
    }

    #[test]
    fn a_completion_retires_the_unsignalled_before_it() {
        loom::model(|| {
            let (mut poster, mut retirer) = new(2, 0);
            let rung = Arc::new(AtomicU32::new(0));
            let bell = Arc::clone(&rung);
            let posting = thread::spawn(move || {
                poster.try_push(0).unwrap();
                poster.try_push(1).unwrap();
                bell.store(1, Ordering::Release);
            });
            while rung.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            assert_eq!((retirer.retire(STEP), retirer.retire(STEP)), (Some((0, 1)), Some((1, 0))));
            posting.join().unwrap();
        });
    }
}
