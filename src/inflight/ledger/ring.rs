//! A ledger in memory: one line for its two ends, the value that is alone in flight, and what the user of one end keeps
//! there; and the cells behind it. So a pair that has not been used for long costs few lines.
#![allow(unsafe_code, reason = "a ring in memory, its cells and what counts its holders")]

use super::{NAME_BITS, STEP, after};
use crate::domain::{Block, Blocks, Line};
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::Arc;

/// What both sides have in common. (Two threads hand over `posted` with each value anyway, so that `retired` beside it costs
/// them less than a nanosecond.)
#[repr(C)]
pub(super) struct Ledger<T> {
    /// # Invariants
    ///
    /// 0. Of the cells, those from `retired` to `posted` hold a value, but for what is `alone`; the retirer alone touches
    ///    them, the poster all others. (A poster that takes its newest value back lowers `posted` first.)
    pub(super) posted: AtomicU64,
    /// 1. Written by the retirer alone.
    pub(super) retired: AtomicU64,
    /// 2. From the oldest id in flight to where the ring is full: at most as many as there are cells, and never written. What
    ///    is below [`STEP`] is of the [`Detour`](super::Detour), and makes all of it [negative](BLOCKED): so there is one compare
    ///    before a post, of both.
    pub(super) limit: AtomicU64,
    /// 3. The value that is alone, if one is: posted while no other was in flight, so the oldest, and in no cell. Touched by the
    ///    side to which its cell would belong.
    alone: UnsafeCell<ManuallyDrop<Option<T>>>,
    /// 4. One less than there are cells, a power of two.
    mask: u32,
    pub(super) origin: Origin,
    /// 5. How many [`Held`] there are, with the last of which the memory is freed. There cannot be so many that it overflows: a
    ///    work queue has three (a fourth in passing), and those of [`Nothing`](super::Nothing) each have a place.
    holders: AtomicU32,
    /// Its place in the chunk of memory.
    block: u32,
}

/// In a ledger's `limit`: there is a detour.
pub(super) const BLOCKED: u64 = 1 << 63;

type Cell<T> = UnsafeCell<MaybeUninit<T>>;

/// Where the cells begin: behind the line. (What stands for an atomic in models takes more room.)
const CELLS: usize = if cfg!(loom) { 1024 } else { 64 };

/// What completions tell of the queue pair that a work queue is of: its number, of 24 bits, and flags.
#[derive(Clone, Copy, Default)]
pub(crate) struct Origin(u32);

impl Origin {
    const DATAGRAMS: u32 = 1 << 31;
    const PREFIX: u32 = 1 << 30;
    const FLAGS: u32 = Self::DATAGRAMS | Self::PREFIX;

    /// Of a work queue where each request ends by its own completion alone.
    pub(crate) fn new(qpn: u32, datagrams: bool) -> Self {
        Self(qpn & !Self::FLAGS | if datagrams { Self::DATAGRAMS } else { 0 })
    }

    /// The same where the completion of a request ends those before it too, if `so`.
    pub(crate) fn retiring_prefixes(self, so: bool) -> Self {
        Self(self.0 | if so { Self::PREFIX } else { 0 })
    }

    /// Whether the completion of a request ends those before it too.
    #[inline(always)]
    pub(crate) fn retires_prefixes(self) -> bool {
        self.0 & Self::PREFIX != 0
    }

    #[inline(always)]
    pub(crate) fn qpn(self) -> u32 {
        self.0 & !Self::FLAGS
    }

    /// Whether a message comes with a header.
    #[inline(always)]
    pub(crate) fn datagrams(self) -> bool {
        self.0 & Self::DATAGRAMS != 0
    }
}

/// Where a ledger is.
pub(super) struct At<T>(
    /// # Invariants
    ///
    /// 0. The beginning of its memory, cells included, which whoever has this keeps alive.
    pub(super) NonNull<Ledger<T>>,
);

impl<T> Clone for At<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for At<T> {}

// SAFETY: a cell is touched by one side at a time (ledger 0), and counters hand it over with release and acquire. What is in
// its [own](Self::own) room is for the poster to vouch for.
unsafe impl<T: Send> Send for At<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for At<T> {}

impl<T> Deref for At<T> {
    type Target = Ledger<T>;

    #[inline(always)]
    fn deref(&self) -> &Ledger<T> {
        // SAFETY: alive (0). What is written beside atomics is written before there is a second holder.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Ledger<T> {
    /// `posted`, which need not be read atomically by who writes it.
    ///
    /// # Safety
    ///
    /// Nobody else writes it.
    #[inline(always)]
    pub(super) unsafe fn posted_by_us(&self) -> u64 {
        // SAFETY: reads do not race, and nobody writes (caller).
        #[cfg(not(loom))]
        return unsafe { self.posted.as_ptr().read() };
        // SAFETY: as above; the model looks after it.
        #[cfg(loom)]
        return unsafe { self.posted.unsync_load() };
    }

    /// How many cells there are, a power of two.
    pub(super) fn cells(&self) -> u32 {
        self.mask + 1
    }

    /// The id of the oldest value in flight; of the next one if none is.
    #[inline(always)]
    pub(super) fn oldest(&self) -> u64 {
        self.retired.load(Ordering::Relaxed)
    }

    /// The id after the newest value in flight, for the retirer. Loaded each time: a poster that takes a value back lowers
    /// `posted`, and the retirer must see the value that comes there next.
    #[inline(always)]
    pub(super) fn end_of_posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// Hands the cells before `oldest` over to the poster. For the retirer, which has emptied them.
    #[inline(always)]
    pub(super) fn set_oldest(&self, oldest: u64) {
        self.retired.store(oldest, Ordering::Release);
    }

    /// The bits of the [`Detour`](super::Detour).
    #[inline(always)]
    pub(super) fn detour(&self) -> u32 {
        (self.limit.load(Ordering::Relaxed) & (STEP - 1)) as u32
    }
}

impl<T> Ledger<T> {
    /// Leaves a value alone.
    ///
    /// # Safety
    ///
    /// The caller posts, and nothing is in flight.
    #[inline(always)]
    pub(super) unsafe fn leave_alone(&self, value: T) {
        // SAFETY: free, so ours (3); there is nothing to drop.
        self.alone.with_mut(|alone| unsafe { alone.write(ManuallyDrop::new(Some(value))) });
    }

    /// Takes the value that is alone, if the oldest is.
    ///
    /// # Safety
    ///
    /// It is in flight, and the caller retires; or the poster took it back, and is the caller.
    #[inline(always)]
    pub(super) unsafe fn take_alone(&self) -> Option<T> {
        // SAFETY: the caller's (3).
        self.alone.with_mut(|alone| unsafe { (*alone).take() })
    }
}

impl<T> At<T> {
    /// Whether both are the same ledger.
    pub(super) fn is(self, other: Self) -> bool {
        self.0 == other.0
    }

    /// How much memory one with so many cells takes.
    fn lines(cells: usize) -> usize {
        (CELLS + cells * size_of::<Cell<T>>()).div_ceil(size_of::<Line>())
    }

    /// Room in its line for what the user of the poster keeps there.
    #[inline(always)]
    pub(super) fn own<P>(self) -> NonNull<P> {
        const { assert!(size_of::<Ledger<T>>().is_multiple_of(align_of::<P>()) && align_of::<P>() <= align_of::<Line>()) };
        const { assert!(size_of::<Ledger<T>>() + size_of::<P>() <= CELLS) };
        // SAFETY: inside its memory, by what was asserted.
        unsafe { self.0.add(1) }.cast()
    }

    #[inline(always)]
    fn cell(self, index: usize) -> *mut Cell<T> {
        self.0.as_ptr().wrapping_byte_add(CELLS).cast::<Cell<T>>().wrapping_add(index)
    }

    /// The cell of an id, with those that follow it in memory.
    #[inline(always)]
    pub(super) fn row(self, id: u64) -> Row<T> {
        let index = (id >> NAME_BITS) as u32 & self.mask;
        Row { next: self.cell(index as usize), len: self.mask - index + 1 }
    }

    /// Moves the value out of a cell.
    ///
    /// # Safety
    ///
    /// It holds one, which is the caller's (ledger 0), and is not used there any more.
    #[inline(always)]
    pub(super) unsafe fn read(self, id: u64) -> T {
        // SAFETY: the caller's promise.
        unsafe { self.row(id).read() }
    }

    /// Moves a value into a cell.
    ///
    /// # Safety
    ///
    /// It holds none, and is the caller's (ledger 0).
    #[inline(always)]
    pub(super) unsafe fn write(self, id: u64, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.row(id).write(value) };
    }
}

/// Keeps a ledger alive.
pub(super) struct Held<T>(
    /// # Invariants
    ///
    /// 0. Alive: this is counted among its `holders`.
    pub(super) At<T>,
);

impl<T> Clone for Held<T> {
    fn clone(&self) -> Self {
        self.0.holders.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        // Release, and acquire by the last: all that others did with it was before.
        if self.0.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: it was the last (ledger 5).
            unsafe { self.free() };
        }
    }
}

impl<T> Held<T> {
    /// A new ledger, with cells for `depth`, whose next id is `first`.
    pub(super) fn new(pool: &Arc<Blocks>, depth: u32, first: u64, origin: Origin) -> Self {
        const { assert!(align_of::<Ledger<T>>() <= align_of::<Line>() && align_of::<Cell<T>>() <= align_of::<Line>()) };
        const { assert!(size_of::<Ledger<T>>() <= CELLS && CELLS.is_multiple_of(align_of::<Line>())) };
        let cells = depth.next_power_of_two();
        let Block { at, index: block } = pool.take(At::<T>::lines(cells as usize));
        let at = At(at.cast());
        let ledger = Ledger {
            posted: AtomicU64::new(first),
            retired: AtomicU64::new(first),
            limit: AtomicU64::new(after(0, depth)),
            alone: UnsafeCell::new(ManuallyDrop::new(None)),
            mask: cells - 1,
            origin,
            holders: AtomicU32::new(1),
            block,
        };
        // SAFETY: there is room, and aligned so, as was asserted above; nobody else knows it.
        unsafe { at.0.write(ledger) };
        // Only what a model watches has to be made; otherwise any bytes are a cell.
        #[cfg(loom)]
        for index in 0..cells as usize {
            // SAFETY: as above.
            unsafe { at.cell(index).write(UnsafeCell::new(MaybeUninit::uninit())) };
        }
        Self(at)
    }

    /// # Safety
    ///
    /// Nobody has the ledger any more.
    #[cold]
    unsafe fn free(&self) {
        let (at, cells) = (self.0, self.0.mask as usize + 1);
        let block = Block { at: at.0.cast(), index: at.block };
        // Values are not dropped; what a model watches is, which takes it for a write.
        #[cfg(loom)]
        for index in 0..cells {
            // SAFETY: made (`new`), and nobody's any more.
            unsafe { at.cell(index).read() }.with_mut(|_| ());
        }
        // SAFETY: likewise.
        unsafe { at.0.drop_in_place() };
        // SAFETY: taken for so many (`new`), and used no more.
        unsafe { Blocks::give_back(block, At::<T>::lines(cells)) };
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
    pub(super) unsafe fn read(&mut self) -> T {
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
