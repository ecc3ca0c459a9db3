//! The memory of a ledger: a *header* of one cache line, and behind it the cells. The header holds the counters of both
//! ends, the sole value in flight, and the data of the poster's user. So a pair whose memory is not in the cache costs
//! few cache misses.
#![allow(unsafe_code, reason = "a ring in memory, its cells, and the count of its holders")]

use super::{NAME_BITS, STEP, after, between};
use crate::domain::{Block, Blocks, Line};
use crate::inflight::cell::Cell;
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};
use core::mem::{ManuallyDrop, needs_drop};
use core::ops::Deref;
use core::ptr::NonNull;
#[cfg(not(loom))]
use core::slice;
use std::sync::Arc;

/// The part of the header that both ends share. (`posted` and `retired` are in one cache line. That line moves between
/// two threads for `posted` anyway, so `retired` in the same line costs less than a nanosecond.)
#[repr(C)]
pub(super) struct Ledger<T> {
    /// # Invariants
    ///
    /// 0. Each cell from `retired` to before `posted` holds a value; only the cell of the sole value is empty. Only the
    ///    retirer touches these cells, and only the poster touches the others. (A poster that takes its newest value
    ///    back lowers `posted` first.)
    pub(super) posted: AtomicU64,
    /// 1. Only the retirer writes it.
    pub(super) retired: AtomicU64,
    /// 2. The depth of the queue, in steps of [`STEP`]: at most the number of cells, and never changed. The bits below
    ///    `STEP` are the flags of the [`Detour`](super::Detour). While any flag is set, [`BLOCKED`] makes the whole
    ///    word negative. So one compare before a post checks both the room and the flags.
    pub(super) limit: AtomicU64,
    /// 3. The sole value: it was posted while no other was in flight, and it is still in flight. It is the oldest
    ///    value, and is in no cell. Whichever end owns the cell of the oldest id owns this place.
    pub(super) sole: UnsafeCell<ManuallyDrop<Option<T>>>,
    /// 4. The number of cells minus one. The number of cells is a power of two.
    mask: u32,
    pub(super) origin: Origin,
    /// 5. How many [`LedgerRef`]s there are. The last one frees the memory. The count cannot overflow: a work queue has
    ///    three or four holders, and an [`EmptyLedger`](super::EmptyLedger) has one for each slot of a completion
    ///    queue.
    holders: AtomicU32,
    /// The index of the block in its chunk.
    block: u32,
    /// In a loom model the cells are objects of loom, which take more room. They are leaked.
    #[cfg(loom)]
    cells: ManuallyDrop<Box<[Cell<T>]>>,
}

/// The sign bit of a ledger's `limit`: set while a flag of the detour is set.
pub(super) const BLOCKED: u64 = 1 << 63;

/// The offset of the cells, which follow the header. (In a loom model an atomic takes more room.)
const CELLS: usize = if cfg!(loom) { 1024 } else { 64 };

/// The facts about the queue pair of a work queue that a poller needs: 24 bits of number, and flags.
#[derive(Clone, Copy, Default)]
pub(crate) struct Origin(u32);

impl Origin {
    const DATAGRAMS: u32 = 1 << 31;
    const PREFIX: u32 = 1 << 30;
    const FLAGS: u32 = Self::DATAGRAMS | Self::PREFIX;

    /// The origin of a work queue where a completion ends only its own request.
    pub(crate) fn new(qpn: u32, datagrams: bool) -> Self {
        Self(qpn & !Self::FLAGS | if datagrams { Self::DATAGRAMS } else { 0 })
    }

    /// The same origin. If `retires` is true, a completion also ends the requests before its own.
    pub(crate) fn retiring_prefixes(self, retires: bool) -> Self {
        Self(self.0 | if retires { Self::PREFIX } else { 0 })
    }

    /// Whether a completion also ends the requests before its own.
    #[inline(always)]
    pub(crate) fn retires_prefixes(self) -> bool {
        self.0 & Self::PREFIX != 0
    }

    #[inline(always)]
    pub(crate) fn qpn(self) -> u32 {
        self.0 & !Self::FLAGS
    }

    /// Whether the work queue carries datagrams, which have a header.
    #[inline(always)]
    pub(crate) fn datagrams(self) -> bool {
        self.0 & Self::DATAGRAMS != 0
    }
}

/// A pointer to a ledger.
pub(super) struct LedgerPtr<T>(
    /// # Invariants
    ///
    /// 0. Points to the header of a ledger, with its cells behind. Whoever has this pointer keeps the ledger alive.
    pub(super) NonNull<Ledger<T>>,
);

impl<T> Clone for LedgerPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for LedgerPtr<T> {}

// SAFETY: only one end at a time touches a cell (ledger 0), and the counters hand it over with release and acquire. The
// user data in the header belongs to the poster, which is `Send` and `Sync` only if that data is.
unsafe impl<T: Send> Send for LedgerPtr<T> {}
// SAFETY: the reasons for `Send` above hold here, too; shared access goes through the same counters.
unsafe impl<T: Send> Sync for LedgerPtr<T> {}

impl<T> Deref for LedgerPtr<T> {
    type Target = Ledger<T>;

    #[inline(always)]
    fn deref(&self) -> &Ledger<T> {
        // SAFETY: the ledger is alive (0). Its fields that are not atomics are written before there is a second holder.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Ledger<T> {
    /// How many cells there are, a power of two.
    pub(super) fn cells(&self) -> u32 {
        self.mask + 1
    }

    /// The id of the oldest value in flight; the next id if none is in flight.
    #[inline(always)]
    pub(super) fn oldest(&self) -> u64 {
        self.retired.load(Ordering::Relaxed)
    }

    /// The id after the newest value in flight, for the retirer. It is loaded each time: a poster that takes a value
    /// back lowers `posted`, and the retirer must see the value that is posted next with that id.
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

impl<T> LedgerPtr<T> {
    /// Whether both point to the same ledger.
    pub(super) fn is_same_as(self, other: Self) -> bool {
        self.0 == other.0
    }

    /// How many cache lines a ledger with this many cells takes.
    fn lines(cells: usize) -> usize {
        (CELLS + cells * size_of::<Cell<T>>()).div_ceil(size_of::<Line>())
    }

    /// The room in the header for the data of the poster's user.
    #[inline(always)]
    pub(super) fn user_data<P>(self) -> *mut P {
        const { assert!(size_of::<Ledger<T>>().is_multiple_of(align_of::<P>())) };
        const { assert!(align_of::<P>() <= align_of::<Line>()) };
        const { assert!(size_of::<Ledger<T>>() + size_of::<P>() <= CELLS) };
        self.0.as_ptr().wrapping_add(1).cast()
    }

    /// The cells from the one of this id to the end of the ring; at least one.
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
    pub(super) fn cell(&self, id: u64) -> &Cell<T> {
        // Never panics: there is at least one cell. The compiler sees that, too.
        &self.cells_from(id)[0]
    }

    /// The contiguous cells of the ids from `from` on, at most to before `to`.
    #[inline(always)]
    pub(super) fn cells_between(&self, from: u64, to: u64) -> &[Cell<T>] {
        let cells = self.cells_from(from);
        &cells[..cells.len().min(between(from, to) as usize)]
    }

    /// The cells from the one of this id to the end of the ring, and their number. For the poster.
    #[inline(always)]
    pub(super) fn row(&self, id: u64) -> (CellRow<T>, u32) {
        let cells = self.cells_from(id);
        (CellRow { next: cells.as_ptr() }, cells.len() as u32)
    }

    /// Moves a value out. If `is_oldest`, no older value is in flight, so this one may be the sole value.
    ///
    /// # Safety
    ///
    /// The value is in the ledger and belongs to the caller (ledger 0): the caller is the retirer, or is the poster and
    /// has lowered `posted`. Nobody uses the ledger's copy of the value any more.
    #[inline(always)]
    pub(super) unsafe fn take(&self, id: u64, is_oldest: bool) -> T {
        // SAFETY: the place of the sole value belongs to the owner of the oldest value (ledger 3), which is the caller.
        let sole = if is_oldest { self.sole.with_mut(|sole| unsafe { (*sole).take() }) } else { None };
        // SAFETY: the value is not the sole value, so its cell holds it (ledger 0), and the cell belongs to the caller.
        sole.unwrap_or_else(|| unsafe { self.cell(id).take() })
    }
}

/// Keeps a ledger alive.
pub(super) struct LedgerRef<T>(
    /// # Invariants
    ///
    /// 0. The ledger is alive, since its `holders` counts this reference.
    pub(super) LedgerPtr<T>,
);

impl<T> Clone for LedgerRef<T> {
    fn clone(&self) -> Self {
        self.0.holders.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T> Drop for LedgerRef<T> {
    /// Values are leaked, and the ledger itself has nothing to drop.
    fn drop(&mut self) {
        const { assert!(!needs_drop::<Ledger<T>>()) };
        let at = self.0;
        // Release and acquire: all that the other holders did with the ledger happens before the last holder ends it.
        if at.holders.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        #[cfg(loom)]
        at.cells_from(0).iter().for_each(Cell::end);
        let (block, lines) = (Block { at: at.0.cast(), index: at.block }, LedgerPtr::<T>::lines(at.mask as usize + 1));
        // SAFETY: `new` has taken the block with this many lines, and this was the last holder (ledger 5).
        unsafe { Blocks::give_back(block, lines) };
    }
}

impl<T> LedgerRef<T> {
    /// A new ledger for `depth` values. The first id is `first`.
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

/// A cursor over contiguous cells, for consecutive ids of the poster.
pub(crate) struct CellRow<T> {
    /// # Invariants
    ///
    /// 0. `next` is the first cell that is left. Whoever has this keeps the ledger alive.
    next: *const Cell<T>,
}

impl<T> CellRow<T> {
    /// Moves a value into the next cell.
    ///
    /// # Safety
    ///
    /// A cell is left. It is empty, and belongs to the caller (ledger 0).
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, value: T) {
        let next = self.next;
        self.next = next.wrapping_add(1);
        // SAFETY: `next` is a cell of the ledger (0, caller), which is alive.
        let cell = unsafe { &*next };
        // SAFETY: the cell is empty, and belongs to the caller (caller).
        unsafe { cell.put(value) };
    }
}
