//! Places for values that change owners, or that are moved out where nothing drops them.
//!
//! - [`Cell`]: for a value of a ledger. Its user knows who owns it.
//! - [`TicketCell`]: for a value of a slab, which one of several threads takes.
//! - [`FinishOnDrop`]: a value that is consumed when it is dropped.
//! - [`Items`]: the items of a vector that keeps its memory.
//! - [`Masked`]: a vector that is indexed without a check.
//! - [`with_local`]: lends a value of this thread.
#![allow(unsafe_code, reason = "moves values in and out of memory")]

use crate::sync::{AtomicU64, Ordering, UnsafeCell};
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::thread::LocalKey;

/// A cell for one value. At any time one party owns the cell: the counters of a ledger, or the states of a slab, say
/// which. If a value is in the cell when the cell is dropped, the value is leaked.
#[repr(transparent)]
pub(super) struct Cell<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: shared access reaches the value only through `put` and `take`, whose callers own the cell. So threads that
// share a cell can only move a value from one to another, which `T: Send` allows.
unsafe impl<T: Send> Sync for Cell<T> {}

impl<T> Cell<T> {
    pub(super) fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Moves a value into the cell.
    ///
    /// # Safety
    ///
    /// The caller owns the cell, and the cell is empty. (A value in it would be leaked.)
    #[inline(always)]
    pub(super) unsafe fn put(&self, value: T) {
        // SAFETY: the caller owns the cell, so nobody else uses it; `MaybeUninit<T>` and `T` have the same layout.
        self.0.with_mut(|cell| unsafe { cell.cast::<T>().write(value) });
    }

    /// Moves the value out of the cell.
    ///
    /// # Safety
    ///
    /// The caller owns the cell, and the cell holds a value. If the value is taken twice, only one of the two copies is
    /// used.
    #[inline(always)]
    pub(super) unsafe fn take(&self) -> T {
        // SAFETY: the caller owns the cell, so nobody else uses it. The cell holds a value (caller); `MaybeUninit<T>`
        // and `T` have the same layout.
        self.0.with_mut(|cell| unsafe { cell.cast::<T>().read() })
    }

    /// Tells loom that nobody uses the cell any more.
    #[cfg(loom)]
    pub(super) fn end(&self) {
        self.0.with_mut(|_| ());
    }
}

/// A cell that one party fills, and that many threads take values out of. A value in flight belongs to the thread whose
/// compare-exchange takes it.
pub(super) struct TicketCell<T> {
    /// # Invariants
    ///
    /// 0. The ticket of the cell times 2, plus 1 if a value is in flight. Only the holder of the [`FillRight`] changes
    ///    the state of a free cell. A value in flight is taken by a compare-exchange of the state.
    state: AtomicU64,
    /// 1. Holds a value while one is in flight. The value belongs to the thread whose compare-exchange takes it (0).
    ///    When that thread has read it, the cell belongs to the holder of the right. The slab makes sure that nobody
    ///    fills the cell before that: it fills a slot again only after the thread has returned the slot.
    value: Cell<T>,
}

/// The right to fill the cells that were made with it. There is one for each set of cells, and whoever fills a cell
/// borrows it mutably: so no two threads fill one cell.
pub(super) struct FillRight(());

/// One more than the greatest ticket.
const TICKETS: u64 = super::work_id::COUNTS;
const IN_FLIGHT: u64 = 1;

impl FillRight {
    /// Makes free cells with these tickets, and the right to fill them. `place` puts each cell into an item.
    pub(super) fn with_cells<T, I>(
        tickets: impl Iterator<Item = u64>,
        mut place: impl FnMut(TicketCell<T>) -> I,
    ) -> (Self, Box<[I]>) {
        let cell = |ticket| TicketCell { state: AtomicU64::new(ticket << 1), value: Cell::new() };
        (Self(()), tickets.map(|ticket| place(cell(ticket))).collect())
    }
}

impl<T> TicketCell<T> {
    /// Puts a value in, and returns the ticket to take it by. The caller has checked that the cell is free. (If a value
    /// is in flight, `value` is leaked.)
    #[inline]
    pub(super) fn fill(&self, _: &mut FillRight, value: T) -> u64 {
        let state = self.state.load(Ordering::Relaxed);
        let ticket = state >> 1;
        if state & IN_FLIGHT != 0 {
            mem::forget(value);
            return ticket;
        }
        // SAFETY: the cell is free, so it is empty and belongs to the holder of the `FillRight` (1). The caller holds
        // that right and lends it mutably, so nobody else fills the cell. The thread that took the last value has also
        // read it: the slab fills a slot again only after that thread has returned the slot (release and acquire).
        unsafe { self.value.put(value) };
        self.state.store(ticket << 1 | IN_FLIGHT, Ordering::Release);
        ticket
    }

    /// Takes the value if it is in flight with this ticket. The next ticket of the cell is `stride` greater.
    #[inline]
    pub(super) fn take(&self, ticket: u64, stride: u64) -> Option<T> {
        let after = ((ticket + stride) % TICKETS) << 1;
        let in_flight = ticket << 1 | IN_FLIGHT;
        // Acquire on success pairs with the release in `fill`: this thread sees the value. Release on success pairs
        // with acquire on failure: a thread that comes too late sees all that the taker did before its exchange.
        // (`Slab::take_all` relies on this.)
        let taken = self.state.compare_exchange(in_flight, after, Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: a value was in flight, so the cell holds it. The exchange succeeded, so this thread owns the value
        // (1).
        taken.ok().map(|_| unsafe { self.value.take() })
    }

    /// Takes the value, if one is in flight. The next ticket of the cell is `stride` greater.
    pub(super) fn take_any(&self, stride: u64) -> Option<T> {
        if self.is_in_flight() { self.take(self.ticket(), stride) } else { None }
    }

    /// The ticket of the value in flight, or of the next one.
    pub(super) fn ticket(&self) -> u64 {
        self.state.load(Ordering::Relaxed) >> 1
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.state.load(Ordering::Relaxed) & IN_FLIGHT != 0
    }
}

/// A value with a last step, which consumes the value.
pub(crate) trait Finish {
    fn finish(self);
}

/// Holds a value. When this is dropped, it [finishes](Finish::finish) the value.
///
/// (`Drop::drop` gets only `&mut self`, from which no value can be moved out.)
pub(crate) struct FinishOnDrop<T: Finish>(
    /// # Invariants
    ///
    /// 0. Holds a value until `into_inner` or `drop` moves it out. Nothing uses it afterwards.
    ManuallyDrop<T>,
);

impl<T: Finish> FinishOnDrop<T> {
    #[inline(always)]
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    /// Takes the value out, unfinished.
    #[inline(always)]
    pub(crate) fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` holds a value (0), and is neither used again nor dropped.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T: Finish> Drop for FinishOnDrop<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `self` holds a value (0), and is not used after this drop.
        unsafe { ManuallyDrop::take(&mut self.0) }.finish();
    }
}

impl<T: Finish> Deref for FinishOnDrop<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Finish> DerefMut for FinishOnDrop<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Takes items out of a vector from the front. When this is dropped, also by a panic, the remaining items go back into
/// the vector.
pub(super) struct Items<'v, X> {
    /// # Invariants
    ///
    /// 0. The vector has length 0. The items from `next` to before `end`, in its memory, belong to this.
    vector: &'v mut Vec<X>,
    next: *const X,
    end: *const X,
}

impl<'v, X> Items<'v, X> {
    /// The distance from one item to the next, in bytes. Items of size 0 get addresses one byte apart, to tell them
    /// apart.
    const STEP: usize = if mem::size_of::<X>() == 0 { 1 } else { mem::size_of::<X>() };

    #[inline(always)]
    pub(super) fn new(vector: &'v mut Vec<X>) -> Self {
        let len = vector.len();
        // SAFETY: length 0 is at most the capacity, and needs no items. The new `Items` owns the items from here on.
        unsafe { vector.set_len(0) };
        let next = vector.as_ptr();
        Self { end: next.wrapping_byte_add(len * Self::STEP), next, vector }
    }

    /// The next item.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<X> {
        self.first(1).next()
    }

    /// How many items are left.
    #[inline(always)]
    pub(super) fn left(&self) -> usize {
        // With very many items of size 0, `end` has wrapped around past the highest address. The wrapping subtraction
        // still gives the number of items.
        self.end.addr().wrapping_sub(self.next.addr()) / Self::STEP
    }

    /// The next `count` items, or all if there are fewer.
    #[inline(always)]
    pub(super) fn first(&mut self, count: usize) -> First<'_, 'v, X> {
        let end = self.next.wrapping_byte_add(count.min(self.left()) * Self::STEP);
        First { end, items: self }
    }

    #[cold]
    #[inline(never)]
    fn put_back(vector: &mut Vec<X>, next: *const X, left: usize) {
        if mem::size_of::<X>() != 0 {
            // SAFETY: `left` items start at `next`. They and the place that they move to are in the memory of the
            // vector (0).
            unsafe { ptr::copy(next, vector.as_mut_ptr(), left) };
        }
        // SAFETY: the vector's memory starts with `left` items, which belong to nobody else (0).
        unsafe { vector.set_len(left) };
    }
}

impl<X> Drop for Items<'_, X> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.next != self.end {
            Self::put_back(self.vector, self.next, self.left());
        }
    }
}

/// The first of the [`Items`].
pub(super) struct First<'i, 'v, X> {
    items: &'i mut Items<'v, X>,
    /// # Invariants
    ///
    /// 0. Lies between the `next` and the `end` of `items`, both included.
    end: *const X,
}

impl<X> First<'_, '_, X> {
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<X> {
        let next = self.items.next;
        if next == self.end {
            return None;
        }
        self.items.next = next.wrapping_byte_add(Items::<X>::STEP);
        let item = if mem::size_of::<X>() == 0 { ptr::dangling() } else { next };
        // SAFETY: `next` is before the end of the items (0), so `items` owns an item there that was not taken yet. (Any
        // aligned pointer is valid for an item of size 0.)
        Some(unsafe { item.read() })
    }
}

/// A vector with a power of two of items, in which the low bits of any number name an item.
pub(super) struct Masked<T> {
    /// # Invariants
    ///
    /// 0. There are at least `mask + 1` items. That number is a power of two.
    items: Vec<T>,
    mask: usize,
}

impl<T> Masked<T> {
    pub(super) fn new(only: T) -> Self {
        Self { items: vec![only], mask: 0 }
    }

    /// The item that the low bits of `number` name.
    #[inline(always)]
    pub(super) fn of(&mut self, number: usize) -> &mut T {
        // SAFETY: the index is at most `mask`, so there is such an item (0).
        unsafe { self.items.get_unchecked_mut(number & self.mask) }
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.items.get(index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.items.get_mut(index)
    }

    /// Adds items until there is one at `index`.
    pub(super) fn grow_to(&mut self, index: usize, item: impl FnMut() -> T) {
        if self.items.len() <= index {
            self.items.resize_with((index + 1).next_power_of_two(), item);
            self.mask = self.items.len() - 1;
        }
    }
}

/// [`LocalKey::with`] for the data path. (`LocalKey::with` never panics for a value without a drop, but the compiler
/// sees that only if the closure is trivial.)
#[inline(always)]
pub(super) fn with_local<T, R>(key: &'static LocalKey<T>, f: impl FnOnce(&T) -> R) -> R {
    let value: *const T = key.with(ptr::from_ref);
    // SAFETY: the value belongs to this thread, and is dropped only when the thread ends, which is after this call.
    f(unsafe { &*value })
}
