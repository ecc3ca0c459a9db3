//! The ring of a ledger: its memory, the end where values are put in, and the end where they are taken out.
//!
//! The memory is a *header* of one cache line, and behind it the cells. The header holds the counters of both ends, the
//! sole value in flight, and the data of the poster's user. So a pair whose memory is not in the cache costs few cache
//! misses.
//!
//! This file has the memory, then the [`Poster`], then the [`Retirer`], each with what one request needs. The rest is
//! in modules below this one. Only they and this file see the fields of the ring.
//!
//! - [`several`]: many values at once, put in by a batch or taken out after one completion; and values in any order.
//! - [`retirers`]: the retirers of a completion queue, by slot.
//! - [`detour`]: the flags that keep posts off the fast path.
#![allow(unsafe_code, reason = "a ring in memory with two owners, its cells, and the count of its holders")]

mod detour;
mod retirers;
mod several;

use super::origin::Origin;
use super::{MAX_DEPTH, NAME_BITS, STEP, after, between, is_between};
use crate::domain::{Block, Blocks, Line};
use crate::inflight::cell::Cell;
use crate::inflight::{Completed, Quiescent, unlikely};
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};
use core::marker::PhantomData;
use core::mem::{self, ManuallyDrop, needs_drop};
use core::ops::Deref;
use core::ptr::NonNull;
#[cfg(not(loom))]
use core::slice;
pub(crate) use detour::Detour;
pub(crate) use retirers::Retirers;
pub(crate) use several::{AnyOrderRetirer, CellRow};
use std::sync::Arc;

/// The part of the header that both ends share. (`posted` and `retired` are in one cache line. That line moves between
/// two threads for `posted` anyway, so `retired` in the same line costs less than a nanosecond.)
#[repr(C)]
struct Ledger<T> {
    /// # Invariants
    ///
    /// 0. Each cell from `retired` to before `posted` holds a value. Only the cell of the sole value is empty, and the
    ///    cells that an [`AnyOrderRetirer`] has marked as taken. Only the retirer touches these cells, and only the
    ///    poster touches the others. (A poster that takes its newest value back lowers `posted` first.)
    posted: AtomicU64,
    /// 1. Only the retirer writes it.
    retired: AtomicU64,
    /// 2. The depth of the queue, in steps of [`STEP`]: at most the number of cells, and never changed. The bits below
    ///    `STEP` are the flags of the [`Detour`]. While any flag is set, [`BLOCKED`] makes the whole word negative. So
    ///    one compare before a post checks both the room and the flags.
    limit: AtomicU64,
    /// 3. The sole value: it was posted while no other was in flight, and it is still in flight. It is the oldest
    ///    value, and is in no cell. Whichever end owns the cell of the oldest id owns this place.
    sole: UnsafeCell<ManuallyDrop<Option<T>>>,
    /// 4. The number of cells minus one. The number of cells is a power of two.
    mask: u32,
    origin: Origin,
    /// 5. How many [`LedgerRef`]s there are. The last one frees the memory. The count cannot overflow: a work queue has
    ///    three or four holders, and the empty ledger of [`Retirers`] has one for each slot of a completion queue.
    holders: AtomicU32,
    /// The index of the block in its chunk.
    block: u32,
    /// In a loom model the cells are objects of loom, which take more room. They are leaked.
    #[cfg(loom)]
    cells: ManuallyDrop<Box<[Cell<T>]>>,
}

/// The sign bit of a ledger's `limit`: set while a flag of the detour is set.
const BLOCKED: u64 = 1 << 63;

/// The offset of the cells, which follow the header. (In a loom model an atomic takes more room.)
const CELLS: usize = if cfg!(loom) { 1024 } else { 64 };

/// A pointer to a ledger.
struct LedgerPtr<T>(
    /// # Invariants
    ///
    /// 0. Points to the header of a ledger, with its cells behind. Whoever has this pointer keeps the ledger alive.
    NonNull<Ledger<T>>,
);

impl<T> Clone for LedgerPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for LedgerPtr<T> {}

// SAFETY: only one end at a time touches a cell (ledger 0) or the place of the sole value (ledger 3). An end gives them
// to the other end with a release store to a counter, and the other end loads that counter with acquire. The user data
// in the header belongs to the poster. `Poster` is `Send` and `Sync` only if its user data is.
unsafe impl<T: Send> Send for LedgerPtr<T> {}
// SAFETY: as for `Send` above. If threads share one `LedgerPtr`, still only the end that owns a cell touches that cell,
// and only the end that owns the place of the sole value touches that place.
unsafe impl<T: Send> Sync for LedgerPtr<T> {}

impl<T> Deref for LedgerPtr<T> {
    type Target = Ledger<T>;

    #[inline(always)]
    fn deref(&self) -> &Ledger<T> {
        // SAFETY: the ledger is alive (0). After `LedgerRef::new` has written it, only its atomics and `sole` change. A
        // shared reference allows that, since `sole` is an `UnsafeCell`.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Ledger<T> {
    /// How many cells there are, a power of two.
    fn cells(&self) -> u32 {
        self.mask + 1
    }

    /// The id of the oldest value in flight; the next id if none is in flight.
    #[inline(always)]
    fn oldest(&self) -> u64 {
        self.retired.load(Ordering::Relaxed)
    }

    /// The id after the newest value in flight, for the retirer. `posted` is loaded anew each time: a poster that
    /// takes a value back lowers `posted`. It then posts another value with the same id, which the retirer must see.
    #[inline(always)]
    fn end_of_posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// Hands the cells before `oldest` over to the poster. For the retirer, which has emptied them.
    #[inline(always)]
    fn set_oldest(&self, oldest: u64) {
        self.retired.store(oldest, Ordering::Release);
    }

    /// Sets the id of the next value. The ledger is empty, and the caller has borrowed both ends, so nobody reads the
    /// counters between the two stores.
    fn restart(&self, id: u64) {
        self.retired.store(id, Ordering::Release);
        self.posted.store(id, Ordering::Release);
    }
}

impl<T> LedgerPtr<T> {
    /// Whether both point to the same ledger.
    fn is_same_as(self, other: Self) -> bool {
        self.0 == other.0
    }

    /// How many cache lines a ledger with this many cells takes.
    fn lines(cells: usize) -> usize {
        (CELLS + cells * size_of::<Cell<T>>()).div_ceil(size_of::<Line>())
    }

    /// The room in the header for the data of the poster's user.
    #[inline(always)]
    fn user_data<P>(self) -> *mut P {
        const { assert!(size_of::<Ledger<T>>().is_multiple_of(align_of::<P>())) };
        const { assert!(align_of::<P>() <= align_of::<Line>()) };
        const { assert!(size_of::<Ledger<T>>() + size_of::<P>() <= CELLS) };
        self.0.as_ptr().wrapping_add(1).cast()
    }

    /// The cell of this id and all cells behind it, to the end of the ring.
    #[inline(always)]
    fn cells_from(&self, id: u64) -> &[Cell<T>] {
        let index = (id >> NAME_BITS) as u32 & self.mask;
        #[cfg(loom)]
        return &self.cells[index as usize..];
        #[cfg(not(loom))]
        let first = self.0.as_ptr().wrapping_byte_add(CELLS).cast::<Cell<T>>();
        // SAFETY: the ledger is alive, and has `mask + 1` cells behind its header (0, ledger 4).
        #[cfg(not(loom))]
        return unsafe { slice::from_raw_parts(first.wrapping_add(index as usize), (self.mask - index) as usize + 1) };
    }

    /// The cell of an id.
    #[inline(always)]
    fn cell(&self, id: u64) -> &Cell<T> {
        // The index never panics, since `cells_from` returns at least one cell. The compiler sees that, and adds no
        // check.
        &self.cells_from(id)[0]
    }

    /// Moves a value out. If `is_oldest`, this one may be the sole value.
    ///
    /// # Safety
    ///
    /// The value is in the ledger and belongs to the caller (ledger 0): the caller is the retirer, or is the poster and
    /// has lowered `posted`. Nobody uses the ledger's copy of the value any more. `is_oldest` is true only if no older
    /// value is in flight, and false only if this value is not the sole value.
    #[inline(always)]
    unsafe fn take(&self, id: u64, is_oldest: bool) -> T {
        // SAFETY: the place of the sole value is used only if `is_oldest`. Then `id` is the oldest id, and its cell
        // belongs to the end that calls `take` (caller). So that place belongs to the same end (ledger 3).
        let sole = if is_oldest { self.sole.with_mut(|sole| unsafe { (*sole).take() }) } else { None };
        // SAFETY: this runs only if `sole` is `None`. Then the value is not the sole value, so its cell holds it
        // (ledger 0). The cell belongs to the end that calls `take` (caller).
        sole.unwrap_or_else(|| unsafe { self.cell(id).take() })
    }
}

/// Keeps a ledger alive.
struct LedgerRef<T>(
    /// # Invariants
    ///
    /// 0. The ledger is alive, since its `holders` counts this reference.
    LedgerPtr<T>,
);

impl<T> Clone for LedgerRef<T> {
    fn clone(&self) -> Self {
        self.0.holders.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T> Drop for LedgerRef<T> {
    /// The last reference frees the memory of the ledger. Values that are still in it are leaked. The ledger itself has
    /// nothing to drop.
    fn drop(&mut self) {
        const { assert!(!needs_drop::<Ledger<T>>()) };
        let at = self.0;
        // Only the last holder frees the ledger. Release and acquire: all that the other holders did with the ledger
        // happens before the ledger is freed.
        if at.holders.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        #[cfg(loom)]
        at.cells_from(0).iter().for_each(Cell::end);
        let (block, lines) = (Block { at: at.0.cast(), index: at.block }, LedgerPtr::<T>::lines(at.mask as usize + 1));
        // SAFETY: `new` took the block with this number of lines, and this reference was the last one (ledger 5).
        unsafe { Blocks::give_back(block, lines) };
    }
}

impl<T> LedgerRef<T> {
    /// A new ledger for `depth` values. The first id is `first`.
    fn new(pool: &Arc<Blocks>, depth: u32, first: u64, origin: Origin) -> Self {
        const { assert!(align_of::<Ledger<T>>() <= align_of::<Line>() && align_of::<Cell<T>>() <= align_of::<Line>()) };
        const { assert!(size_of::<Ledger<T>>() <= CELLS && CELLS.is_multiple_of(align_of::<Line>())) };
        let cells = depth.next_power_of_two();
        let Block { at, index: block } = pool.take(LedgerPtr::<T>::lines(cells as usize));
        let at = LedgerPtr(at.cast());
        let ledger = Ledger {
            posted: AtomicU64::new(first),
            retired: AtomicU64::new(first),
            limit: AtomicU64::new(after(0, depth)),
            sole: UnsafeCell::new(ManuallyDrop::new(None)),
            mask: cells - 1,
            origin,
            holders: AtomicU32::new(1),
            block,
            #[cfg(loom)]
            cells: ManuallyDrop::new((0..cells).map(|_| Cell::new()).collect()),
        };
        // SAFETY: the block is new, and has room and alignment for the header, as asserted above. (Any bytes are
        // valid cells.)
        unsafe { at.0.write(ledger) };
        Self(at)
    }
}

/// Makes a ledger for `depth` requests in flight, 1 to [`MAX_DEPTH`], and returns its two ends. The first request has
/// the id `first`.
pub(crate) fn ledger<T>(pool: &Arc<Blocks>, depth: u32, first: u64, origin: Origin) -> (Poster<T>, Retirer<T>) {
    let held = LedgerRef::new(pool, depth.clamp(1, MAX_DEPTH), first, origin);
    (Poster::of_new(&held), Retirer(held))
}

/// The posting end of a ledger: one word.
pub(crate) struct Poster<T, P = ()> {
    /// # Invariants
    ///
    /// 0. The header of the ledger holds a `P`, which nobody but this poster uses. A ledger has one poster. Nobody
    ///    writes `posted` without this poster, borrowed mutably.
    held: LedgerRef<T>,
    user_data: PhantomData<P>,
}

impl<T, P> Drop for Poster<T, P> {
    fn drop(&mut self) {
        // SAFETY: the user data is alive, and nobody but this poster uses it (0). This drop is its last use.
        unsafe { self.user_data_at().drop_in_place() };
    }
}

impl<T> Poster<T> {
    /// The one poster of a new ledger.
    fn of_new(held: &LedgerRef<T>) -> Self {
        Self { held: held.clone(), user_data: PhantomData }
    }

    /// Whether this posts to that ledger.
    fn is_of(&self, ledger: LedgerPtr<T>) -> bool {
        self.ledger().is_same_as(ledger)
    }

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
        // Relaxed is enough: only this poster writes `posted` (0), or `Retirer::restart` while it borrows this poster.
        self.ledger().posted.load(Ordering::Relaxed)
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

    /// Takes the newest value back.
    ///
    /// # Safety
    ///
    /// The device was not given the newest request. So that request never completes, and the retirer does not reach the
    /// value.
    pub(crate) unsafe fn take_back(&mut self) -> Option<T> {
        let others = self.outstanding().checked_sub(1)?;
        let newest = self.next_id().wrapping_sub(STEP);
        self.ledger().posted.store(newest, Ordering::Release);
        // SAFETY: the value was in flight, `posted` is lowered, and the retirer does not reach the value (caller). If
        // `others` is not 0, older values were in flight when the newest value was posted, so the newest value is not
        // the sole value (ledger 3).
        Some(unsafe { self.ledger().take(newest, others == 0) })
    }
}

/// The distance from the oldest id in flight to `next_id`.
#[inline(always)]
fn taken<T>(ledger: LedgerPtr<T>, next_id: u64) -> u64 {
    next_id.wrapping_sub(ledger.retired.load(Ordering::Acquire))
}

/// The slot for the next value of a ledger. It keeps the values that were read once: after the atomic load of `retired`
/// the compiler would have to read them again.
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
    /// 0. There is room for one value until it is pushed: nobody else posts while the poster is borrowed.
    next: NextSlot<'p, T>,
    /// 1. The distance from the oldest id in flight to the next id, when it was read. Since then it can only have
    ///    shrunk, so 0 is still 0.
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
            // emptied the cell before it stored the `retired` that this poster has acquired.
            unsafe { ledger.cell(id).put(value) };
        }
        // The value is published before the post verb is called: another thread can poll its completion before that
        // verb returns.
        ledger.posted.store(after(id, 1), Ordering::Release);
    }
}

/// The end of a ledger where values are taken out. It is one word, so that a poller with many queues touches few cache
/// lines.
pub(crate) struct Retirer<T>(LedgerRef<T>);

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

/// A borrowed [`Retirer`], as small as one pointer, so that it stays in a register of the processor.
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
        // SAFETY: the value is in flight (1), and is the oldest (0). The poster wrote the value before it stored the
        // `posted` that this end has acquired, and only this end takes values out.
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
}
