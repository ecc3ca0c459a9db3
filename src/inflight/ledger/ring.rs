//! A ledger in memory: one cache line for the counters of both ends, for the value that is alone in flight, and for
//! what the user of the poster keeps there; and the cells behind that line. So a pair that comes from cold memory costs
//! few cache misses.
#![allow(unsafe_code, reason = "a ring in memory, its cells, and the count of its holders")]

use super::{NAME_BITS, STEP, after};
use crate::domain::{Block, Blocks, Line};
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::Arc;

/// What both ends share. (`posted` and `retired` are in one cache line. Two threads pass the line to and fro for
/// `posted` anyway, so `retired` beside it costs less than a nanosecond.)
#[repr(C)]
pub(super) struct Ledger<T> {
    /// # Invariants
    ///
    /// 0. The cells from `retired` to before `posted` hold a value each, except for a value that is `alone`. Only the
    ///    retirer touches these cells, and only the poster touches the others. (A poster that takes its newest value
    ///    back lowers `posted` first.)
    pub(super) posted: AtomicU64,
    /// 1. Only the retirer writes it.
    pub(super) retired: AtomicU64,
    /// 2. The depth of the queue, in steps of [`STEP`]: at most the number of cells, and never changed. The bits below
    ///    `STEP` are the flags of the [`Detour`](super::Detour); while any is set, [`BLOCKED`] makes the whole word
    ///    negative. So one compare before a post checks both the room and the flags.
    pub(super) limit: AtomicU64,
    /// 3. The value that was posted while no other was in flight, if it still is. It is the oldest, and is in no cell.
    ///    The end to which its cell would belong touches it.
    alone: UnsafeCell<ManuallyDrop<Option<T>>>,
    /// 4. The number of cells, a power of two, less one.
    mask: u32,
    pub(super) origin: Origin,
    /// 5. How many [`LedgerRef`] there are. The last one frees the memory. The count cannot overflow: a work queue has
    ///    three or four holders, and [`Nothing`](super::Nothing) has one for each slot of a completion queue.
    holders: AtomicU32,
    /// The index of the block in its chunk.
    block: u32,
}

/// The sign bit of a ledger's `limit`: a flag of the detour is set.
pub(super) const BLOCKED: u64 = 1 << 63;

type Cell<T> = UnsafeCell<MaybeUninit<T>>;

/// The offset of the cells: they follow the line. (In models an atomic takes more room.)
const CELLS: usize = if cfg!(loom) { 1024 } else { 64 };

/// What a poller must know of the queue pair of a work queue: 24 bits of number, and flags.
#[derive(Clone, Copy, Default)]
pub(crate) struct Origin(u32);

impl Origin {
    const DATAGRAMS: u32 = 1 << 31;
    const PREFIX: u32 = 1 << 30;
    const FLAGS: u32 = Self::DATAGRAMS | Self::PREFIX;

    /// The origin of a work queue where each request ends by its own completion only.
    pub(crate) fn new(qpn: u32, datagrams: bool) -> Self {
        Self(qpn & !Self::FLAGS | if datagrams { Self::DATAGRAMS } else { 0 })
    }

    /// The same, where the completion of a request ends those before it too if `so` is true.
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

    /// Whether its messages are datagrams, which have a header.
    #[inline(always)]
    pub(crate) fn datagrams(self) -> bool {
        self.0 & Self::DATAGRAMS != 0
    }
}

/// A pointer to a ledger.
pub(super) struct LedgerPtr<T>(
    /// # Invariants
    ///
    /// 0. Points to the line of a ledger, with its cells behind. Whoever has this pointer keeps the ledger alive.
    pub(super) NonNull<Ledger<T>>,
);

impl<T> Clone for LedgerPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for LedgerPtr<T> {}

// SAFETY: one end at a time touches a cell (ledger 0), and the counters hand it over with release and acquire. The room
// that `own` gives is the poster's, which is `Send` and `Sync` only if what it keeps there is.
unsafe impl<T: Send> Send for LedgerPtr<T> {}
// SAFETY: as for `Send`; shared access goes through the same counters.
unsafe impl<T: Send> Sync for LedgerPtr<T> {}

impl<T> Deref for LedgerPtr<T> {
    type Target = Ledger<T>;

    #[inline(always)]
    fn deref(&self) -> &Ledger<T> {
        // SAFETY: alive (0). The fields that are no atomics are written before there is a second holder.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Ledger<T> {
    /// `posted`, read without an atomic load, so that the compiler may keep it in a register.
    ///
    /// # Safety
    ///
    /// Nobody else writes it.
    #[inline(always)]
    pub(super) unsafe fn posted_by_us(&self) -> u64 {
        // SAFETY: only the caller writes it, so this read races with no write.
        #[cfg(not(loom))]
        return unsafe { self.posted.as_ptr().read() };
        // SAFETY: only the caller writes it; the model checks that.
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

    /// The id after the newest value in flight, for the retirer. Loaded each time: a poster that takes a value back
    /// lowers `posted`, and the retirer must see the value that comes there next.
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
    /// Puts a value into the ledger, alone.
    ///
    /// # Safety
    ///
    /// The caller is the one who posts, and nothing is in flight.
    #[inline(always)]
    pub(super) unsafe fn leave_alone(&self, value: T) {
        // SAFETY: nothing is in flight, so the place is the poster's (3), and empty.
        self.alone.with_mut(|alone| unsafe { alone.write(ManuallyDrop::new(Some(value))) });
    }

    /// Takes the oldest value, if it is alone.
    ///
    /// # Safety
    ///
    /// A value is in flight and the caller is the one who retires; or the caller is the poster, and has taken the last
    /// value in flight back.
    #[inline(always)]
    pub(super) unsafe fn take_alone(&self) -> Option<T> {
        // SAFETY: the place is the caller's (3).
        self.alone.with_mut(|alone| unsafe { (*alone).take() })
    }
}

impl<T> LedgerPtr<T> {
    /// Whether both are the same ledger.
    pub(super) fn is(self, other: Self) -> bool {
        self.0 == other.0
    }

    /// How many lines of memory a ledger with this many cells takes.
    fn lines(cells: usize) -> usize {
        (CELLS + cells * size_of::<Cell<T>>()).div_ceil(size_of::<Line>())
    }

    /// The room in the line for what the user of the poster keeps there.
    #[inline(always)]
    pub(super) fn own<P>(self) -> NonNull<P> {
        const { assert!(size_of::<Ledger<T>>().is_multiple_of(align_of::<P>())) };
        const { assert!(align_of::<P>() <= align_of::<Line>()) };
        const { assert!(size_of::<Ledger<T>>() + size_of::<P>() <= CELLS) };
        // SAFETY: the room behind the ledger is inside its line, as asserted above.
        unsafe { self.0.add(1) }.cast()
    }

    #[inline(always)]
    fn cell(self, index: usize) -> *mut Cell<T> {
        self.0.as_ptr().wrapping_byte_add(CELLS).cast::<Cell<T>>().wrapping_add(index)
    }

    /// The cells from that of this id to the end of the ring.
    #[inline(always)]
    pub(super) fn row(self, id: u64) -> CellRow<T> {
        let index = (id >> NAME_BITS) as u32 & self.mask;
        CellRow { next: self.cell(index as usize), len: self.mask - index + 1 }
    }

    /// Moves the value out of a cell.
    ///
    /// # Safety
    ///
    /// The cell holds a value and is the caller's (ledger 0). The value in the cell is not used any more.
    #[inline(always)]
    pub(super) unsafe fn read(self, id: u64) -> T {
        // SAFETY: the first cell of the row, of which the caller promises the same.
        unsafe { self.row(id).read() }
    }

    /// Moves a value into a cell.
    ///
    /// # Safety
    ///
    /// The cell is empty and is the caller's (ledger 0).
    #[inline(always)]
    pub(super) unsafe fn write(self, id: u64, value: T) {
        // SAFETY: the first cell of the row, of which the caller promises the same.
        unsafe { self.row(id).write(value) };
    }
}

/// Keeps a ledger alive.
pub(super) struct LedgerRef<T>(
    /// # Invariants
    ///
    /// 0. The ledger is alive, since its `holders` counts this one.
    pub(super) LedgerPtr<T>,
);

impl<T> Clone for LedgerRef<T> {
    fn clone(&self) -> Self {
        self.0.holders.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T> Drop for LedgerRef<T> {
    fn drop(&mut self) {
        // Release by each holder and acquire by the last: what the others did with the ledger comes before its end.
        if self.0.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: this was the last holder (ledger 5).
            unsafe { self.free() };
        }
    }
}

impl<T> LedgerRef<T> {
    /// A new ledger for `depth` values, whose first id is `first`.
    pub(super) fn new(pool: &Arc<Blocks>, depth: u32, first: u64, origin: Origin) -> Self {
        const { assert!(align_of::<Ledger<T>>() <= align_of::<Line>() && align_of::<Cell<T>>() <= align_of::<Line>()) };
        const { assert!(size_of::<Ledger<T>>() <= CELLS && CELLS.is_multiple_of(align_of::<Line>())) };
        let cells = depth.next_power_of_two();
        let Block { at, index: block } = pool.take(LedgerPtr::<T>::lines(cells as usize));
        let at = LedgerPtr(at.cast());
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
        // SAFETY: the block is new, and has room and alignment for it, as asserted above.
        unsafe { at.0.write(ledger) };
        // In a model a cell is an object that must be made. Otherwise any bytes are a cell.
        #[cfg(loom)]
        for index in 0..cells as usize {
            // SAFETY: inside the new block, which has this many cells.
            unsafe { at.cell(index).write(UnsafeCell::new(MaybeUninit::uninit())) };
        }
        Self(at)
    }

    /// Frees the ledger.
    ///
    /// # Safety
    ///
    /// It has no holder any more.
    #[cold]
    unsafe fn free(&self) {
        let (at, cells) = (self.0, self.0.mask as usize + 1);
        let block = Block { at: at.0.cast(), index: at.block };
        // Values are leaked. In a model the cells are dropped, and the model must see that as a write.
        #[cfg(loom)]
        for index in 0..cells {
            // SAFETY: `new` has made it, and it has no user any more.
            unsafe { at.cell(index).read() }.with_mut(|_| ());
        }
        // SAFETY: `new` has written it, and it has no user any more.
        unsafe { at.0.drop_in_place() };
        // SAFETY: `new` has taken the block with this many lines, and it has no user any more.
        unsafe { Blocks::give_back(block, LedgerPtr::<T>::lines(cells)) };
    }
}

/// Cells that lie side by side, for consecutive ids.
pub(crate) struct CellRow<T> {
    /// # Invariants
    ///
    /// 0. The ledger has `len` cells from `next` on. Whoever has this keeps the ledger alive.
    next: *const Cell<T>,
    len: u32,
}

impl<T> CellRow<T> {
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` of the cells, or all if there are fewer.
    #[inline(always)]
    pub(crate) fn at_most(self, len: u32) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// The next cell.
    ///
    /// # Safety
    ///
    /// There is one: `len` is not 0.
    #[inline(always)]
    unsafe fn next(&mut self) -> &Cell<T> {
        let cell = self.next;
        (self.next, self.len) = (cell.wrapping_add(1), self.len.wrapping_sub(1));
        // SAFETY: a cell of the row (0, caller).
        unsafe { &*cell }
    }

    /// A copy of the value in the cell that comes `at` cells after the next one.
    ///
    /// # Safety
    ///
    /// There is such a cell, it holds a value, and it is the caller's (ledger 0). Only one is used as a value: the
    /// copy, or the original in the cell.
    #[inline(always)]
    pub(crate) unsafe fn copy(&self, at: u32) -> ManuallyDrop<T> {
        // SAFETY: a cell of the row (0, caller).
        let cell = unsafe { &*self.next.wrapping_add(at as usize) };
        // SAFETY: the cell holds a value (caller); `MaybeUninit<T>` and `ManuallyDrop<T>` have one layout.
        cell.with_mut(|slot| unsafe { slot.cast::<ManuallyDrop<T>>().read() })
    }

    /// Moves the value out of the next cell.
    ///
    /// # Safety
    ///
    /// There is one, it holds a value, and it is the caller's (ledger 0). The value in the cell is not used any more.
    #[inline(always)]
    pub(super) unsafe fn read(&mut self) -> T {
        // SAFETY: there is a cell, with a value (caller); `MaybeUninit<T>` and `T` have one layout.
        unsafe { self.next() }.with_mut(|slot| unsafe { slot.cast::<T>().read() })
    }

    /// Moves a value into the next cell.
    ///
    /// # Safety
    ///
    /// There is one, it is empty, and it is the caller's (ledger 0).
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, value: T) {
        // SAFETY: there is a cell, and it is the caller's to write (caller); `MaybeUninit<T>` and `T` have one layout.
        unsafe { self.next() }.with_mut(|slot| unsafe { slot.cast::<T>().write(value) });
    }
}
