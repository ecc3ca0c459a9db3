//! A ledger in memory: one cache line for the counters of both ends, for the value that is alone in flight, and for
//! what the user of the poster keeps there; and the cells behind that line. So a pair that comes from cold memory costs
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
    pub(super) alone: UnsafeCell<ManuallyDrop<Option<T>>>,
    /// 4. The number of cells, a power of two, less one.
    mask: u32,
    pub(super) origin: Origin,
    /// 5. How many [`LedgerRef`] there are. The last one frees the memory. The count cannot overflow: a work queue has
    ///    three or four holders, and [`Nothing`](super::Nothing) has one for each slot of a completion queue.
    holders: AtomicU32,
    /// The index of the block in its chunk.
    block: u32,
    /// In a model the cells are objects of the model, which take more room. They are leaked.
    #[cfg(loom)]
    cells: ManuallyDrop<Box<[Cell<T>]>>,
}

/// The sign bit of a ledger's `limit`: a flag of the detour is set.
pub(super) const BLOCKED: u64 = 1 << 63;

/// The offset of the cells: they follow the line. (In a model an atomic takes more room.)
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
    pub(super) fn own<P>(self) -> *mut P {
        const { assert!(size_of::<Ledger<T>>().is_multiple_of(align_of::<P>())) };
        const { assert!(align_of::<P>() <= align_of::<Line>()) };
        const { assert!(size_of::<Ledger<T>>() + size_of::<P>() <= CELLS) };
        self.0.as_ptr().wrapping_add(1).cast()
    }

    /// The cells from that of this id to the end of the ring: one at least.
    #[inline(always)]
    fn cells_from(&self, id: u64) -> &[Cell<T>] {
        let index = (id >> NAME_BITS) as u32 & self.mask;
        #[cfg(loom)]
        return &self.cells[index as usize..];
        #[cfg(not(loom))]
        let first = self.0.as_ptr().wrapping_byte_add(CELLS).cast::<Cell<T>>();
        // SAFETY: the ledger is alive, and has `mask + 1` cells behind its line (0, ledger 4).
        #[cfg(not(loom))]
        return unsafe { slice::from_raw_parts(first.wrapping_add(index as usize), (self.mask - index) as usize + 1) };
    }

    /// The cell of an id.
    #[inline(always)]
    pub(super) fn cell(&self, id: u64) -> &Cell<T> {
        // There is one, and the compiler sees that.
        &self.cells_from(id)[0]
    }

    /// The cells of the ids from `from` to before `to`, as far as they lie side by side.
    #[inline(always)]
    pub(super) fn cells_between(&self, from: u64, to: u64) -> &[Cell<T>] {
        let cells = self.cells_from(from);
        &cells[..cells.len().min(between(from, to) as usize)]
    }

    /// The cells from that of this id to the end of the ring, for the poster, and their number.
    #[inline(always)]
    pub(super) fn row(&self, id: u64) -> (CellRow<T>, u32) {
        let cells = self.cells_from(id);
        (CellRow { next: cells.as_ptr() }, cells.len() as u32)
    }

    /// Moves a value out. `is_oldest`: no older value is in flight, so this one may be alone.
    ///
    /// # Safety
    ///
    /// The value is in the ledger and is the caller's (ledger 0): the caller retires, or is the poster and has lowered
    /// `posted`. The value in the ledger is not used any more.
    #[inline(always)]
    pub(super) unsafe fn take(&self, id: u64, is_oldest: bool) -> T {
        // SAFETY: that place is used by who owns the oldest value (ledger 3), who is the caller.
        let alone = if is_oldest { self.alone.with_mut(|alone| unsafe { (*alone).take() }) } else { None };
        // SAFETY: not alone, so its cell holds it (ledger 0), and the cell is the caller's.
        alone.unwrap_or_else(|| unsafe { self.cell(id).take() })
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
    /// Values are leaked, and the ledger itself has nothing to drop.
    fn drop(&mut self) {
        const { assert!(!needs_drop::<Ledger<T>>()) };
        let at = self.0;
        // Release by each holder and acquire by the last: what the others did with the ledger comes before its end.
        if at.holders.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        #[cfg(loom)]
        at.cells_from(0).iter().for_each(Cell::end);
        let (block, lines) = (Block { at: at.0.cast(), index: at.block }, LedgerPtr::<T>::lines(at.mask as usize + 1));
        // SAFETY: `new` has taken the block with this many lines. This was the last holder (ledger 5).
        unsafe { Blocks::give_back(block, lines) };
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
            #[cfg(loom)]
            cells: ManuallyDrop::new((0..cells).map(|_| Cell::new()).collect()),
        };
        // SAFETY: the block is new, and has room and alignment for it, as asserted above. (Any bytes are a cell.)
        unsafe { at.0.write(ledger) };
        Self(at)
    }
}

/// Cells that lie side by side, for consecutive ids of the poster.
pub(crate) struct CellRow<T> {
    /// # Invariants
    ///
    /// 0. From `next` on are the cells that are left of the row. Whoever has this keeps the ledger alive.
    next: *const Cell<T>,
}

impl<T> CellRow<T> {
    /// Moves a value into the next cell.
    ///
    /// # Safety
    ///
    /// There is one, it is empty, and it is the caller's (ledger 0).
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, value: T) {
        let next = self.next;
        self.next = next.wrapping_add(1);
        // SAFETY: a cell of the row (0, caller).
        let cell = unsafe { &*next };
        // SAFETY: the caller's, and empty.
        unsafe { cell.put(value) };
    }
}
