//! Several values at once, and values in any order.
//!
//! A row is a run of cells next to each other. It ends where the ring ends, so many values may take two rows. A batch
//! writes its values to rows, and then publishes all of them. The retirer empties the rows of a [`Prefix`], and then
//! marks their cells as free.
#![allow(unsafe_code, reason = "writes and empties many cells of a ring at once, and any one of them")]

use super::{LedgerPtr, Poster, Prefix, Retirer};
use crate::inflight::cell::Cell;
use crate::inflight::ledger::{after, between};
use crate::inflight::{Entry, Quiescent, WorkId};
use crate::memory::Buffer;
use crate::sync::Ordering;
use core::mem::ManuallyDrop;

impl<T> LedgerPtr<T> {
    /// The cells of the ids from `from` to before `to`, or only those before the end of the ring.
    #[inline(always)]
    fn cells_between(&self, from: u64, to: u64) -> &[Cell<T>] {
        let cells = self.cells_from(from);
        &cells[..cells.len().min(between(from, to) as usize)]
    }

    /// A cursor at the cell of this id, and the number of cells from there to the end of the ring. For the poster.
    #[inline(always)]
    fn row(&self, id: u64) -> (CellRow<T>, u32) {
        let cells = self.cells_from(id);
        (CellRow { next: cells.as_ptr() }, cells.len() as u32)
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
        // SAFETY: the cell is empty, and belongs to the end that calls `write` (caller).
        unsafe { cell.put(value) };
    }
}

impl<T, P> Poster<T, P> {
    /// The id of the value that is posted `count` values after the next one.
    #[inline(always)]
    pub(crate) fn id_after(&self, count: u32) -> u64 {
        after(self.next_id(), count)
    }

    /// A cursor at the cell of `id`, and the number of cells from there to the end of the ring. A value that is written
    /// there is in flight only once it is [published](Self::publish).
    #[inline(always)]
    pub(crate) fn row(&self, id: u64) -> (CellRow<T>, u32) {
        self.ledger().row(id)
    }

    /// Writes a value for an id that is not posted yet. Nobody sees the value before it is [published](Self::publish).
    ///
    /// # Safety
    ///
    /// Fewer than [`free`](Self::free) ids lie between the next id and `id`, and no value is written at `id`.
    #[cfg(test)]
    pub(crate) unsafe fn write_at(&mut self, id: u64, value: T) {
        // SAFETY: the cell of `id` is free, so it belongs to the poster (ledger 0), and it is empty (caller). The
        // retirer emptied the cell before it stored the `retired` that this poster has acquired.
        unsafe { self.ledger().cell(id).put(value) };
    }

    /// Drops the values before `end`, which are written and not published.
    ///
    /// # Safety
    ///
    /// Each id from `next_id()` on and before `end` was written, and was neither published nor dropped since.
    #[cold]
    pub(crate) unsafe fn drop_unpublished(&mut self, end: u64) {
        for count in 0..between(self.next_id(), end) {
            // SAFETY: the value is written, and still belongs to the poster (caller).
            drop(unsafe { self.ledger().cell(self.id_after(count)).take() });
        }
    }

    /// Publishes the values before `end`, which are written: the device owns them from here on.
    ///
    /// # Safety
    ///
    /// Each id from the next one to before `end` was written.
    #[inline(always)]
    pub(crate) unsafe fn publish(&mut self, end: u64) {
        // The values are published before the post verb is called: another thread can poll a completion before that
        // verb returns.
        self.ledger().posted.store(end, Ordering::Release);
    }
}

impl<T> Prefix<'_, T> {
    /// Takes out the values before the last, and gives each to `f` with its id. The poster gets their cells back at the
    /// end, also if `f` panics.
    #[inline(always)]
    pub(crate) fn each_before_last(&mut self, mut f: impl FnMut(u64, T)) {
        /// When dropped, marks the cells of the values that were taken out as free.
        struct Progress<'t, T> {
            at: LedgerPtr<T>,
            oldest: &'t mut u64,
            next: u64,
        }
        impl<T> Drop for Progress<'_, T> {
            #[inline(always)]
            fn drop(&mut self) {
                *self.oldest = self.next;
                self.at.set_oldest(self.next);
            }
        }
        self.move_sole_to_cell();
        let (at, end) = (self.at, self.last);
        let mut progress = Progress { at, next: self.oldest, oldest: &mut self.oldest };
        while progress.next != end {
            for cell in at.cells_between(progress.next, end) {
                let id = progress.next;
                // SAFETY: the value is in flight (prefix 1), and `move_sole_to_cell` has left no sole value, so the
                // cell holds the value. The poster wrote the value before it stored the `posted` that this end has
                // acquired.
                let value = unsafe { cell.take() };
                progress.next = after(id, 1);
                f(id, value);
            }
        }
    }

    /// Moves the oldest value to its cell, if it is the sole value.
    #[inline(always)]
    fn move_sole_to_cell(&mut self) {
        // SAFETY: the oldest value is in flight (prefix 1), so the place of the sole value belongs to the retirer
        // (ledger 3).
        if let Some(sole) = self.at.sole.with_mut(|sole| unsafe { (*sole).take() }) {
            // SAFETY: `sole` is the oldest value, which is in flight (prefix 1), so the cell of the oldest id belongs
            // to the retirer (ledger 0). That cell is empty, since the sole value was kept outside the cells
            // (ledger 3).
            unsafe { self.at.cell(self.oldest).put(sole) };
        }
    }

    /// The cells of the values from the oldest to before `end`, or only those before the end of the ring. `end` is at
    /// most the id after the last.
    #[inline(always)]
    pub(in crate::inflight::ledger) fn row_to(&mut self, end: u64) -> &[Cell<T>] {
        self.move_sole_to_cell();
        self.at.cells_between(self.oldest, end)
    }

    /// Marks the cells of the oldest `count` values as free. The caller has taken the values out.
    #[inline(always)]
    pub(in crate::inflight::ledger) fn took(&mut self, count: u32) {
        self.oldest = after(self.oldest, count);
        self.at.set_oldest(self.oldest);
    }
}

/// Takes out buffers, as many at once as possible. This is the fastest way out of a ledger.
impl Prefix<'_, Entry> {
    /// Puts all values into `free`, if all are buffers. Otherwise returns the values that it did not put there.
    #[inline(always)]
    pub(crate) fn into_buffers<B>(mut self, free: &mut Vec<Buffer<B>>) -> Result<(), Self> {
        free.reserve(self.count_before_last() as usize + 1);
        let end = after(self.last, 1);
        while self.take_row(free, end) {
            if self.oldest == end {
                return Ok(());
            }
        }
        Err(self)
    }

    /// Puts values before the last into `free`. Stops before the first row of cells that holds anything but buffers.
    #[inline(always)]
    pub(crate) fn take_buffers_before_last<B>(&mut self, free: &mut Vec<Buffer<B>>) {
        free.reserve(self.count_before_last() as usize);
        while self.count_before_last() != 0 && self.take_row(free, self.last) {}
    }

    /// Takes out the values from the oldest to before `end`, or only those before the end of the ring. If any of them
    /// is not a buffer, or `free` has no room for them, takes none and returns false. There must be at least one value,
    /// and `end` is at most the id after the last.
    ///
    /// The loop first copies all words, and checks afterwards whether all of them were buffers. So the compiler can
    /// vectorize it.
    #[inline(always)]
    fn take_row<B>(&mut self, free: &mut Vec<Buffer<B>>, end: u64) -> bool {
        let row = self.row_to(end);
        let count = row.len();
        let Some(places) = free.spare_capacity_mut().get_mut(..count) else { return false };
        let mut bits = 0;
        for (cell, place) in row.iter().zip(places) {
            // SAFETY: the value is in flight (prefix 1), and `row_to` has left no sole value, so the cell holds the
            // value. `take` copies it and leaves the cell as it is. If all values of the row are buffers, only the
            // copies are used from now on; otherwise only the values in the cells.
            let entry = ManuallyDrop::new(unsafe { cell.take() });
            bits |= entry.bits();
            *place = ManuallyDrop::into_inner(entry).into_maybe_buffer();
        }
        if !Entry::are_buffers(bits) {
            return false;
        }
        // SAFETY: the loop has written `count` entries behind the old length, and all of them are buffers
        // (`are_buffers`).
        unsafe { free.set_len(free.len() + count) };
        self.took(count as u32);
        true
    }
}

/// A [`Retirer`] that takes values out in any order. The poster gets their cells back in the order of posting.
pub(crate) struct AnyOrderRetirer<T> {
    retirer: Retirer<T>,
    /// # Invariants
    ///
    /// 0. One bit for each cell of the ledger. The bit is set while the cell's id is in flight and its value has been
    ///    taken out. The bit of the oldest id is clear.
    taken: Vec<u64>,
}

impl<T> AnyOrderRetirer<T> {
    pub(crate) fn new(retirer: Retirer<T>) -> Self {
        let taken = vec![0; retirer.cells().div_ceil(u64::BITS) as usize];
        Self { retirer, taken }
    }

    /// Whether any value is left.
    pub(crate) fn has_any(&self) -> bool {
        // If any id is in flight, the value of the oldest one is left (0).
        self.retirer.has_any()
    }

    /// The id of the oldest value, if one is left.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.has_any().then(|| self.retirer.oldest())
    }

    /// Whether the value with this id is in flight and was not taken out.
    pub(crate) fn has(&mut self, id: u64) -> bool {
        self.retirer.lend().has(id) && !self.is_taken(id)
    }

    /// The index of the word in `taken`, and the bit in that word, for an id.
    fn bit(&self, id: u64) -> (usize, u64) {
        let cell = WorkId::from_raw(id).index() & (self.retirer.cells() - 1);
        ((cell / u64::BITS) as usize, 1 << (cell % u64::BITS))
    }

    fn is_taken(&self, id: u64) -> bool {
        let (word, bit) = self.bit(id);
        self.taken.get(word).is_some_and(|taken| taken & bit != 0)
    }

    fn flip(&mut self, id: u64) {
        let (word, bit) = self.bit(id);
        if let Some(taken) = self.taken.get_mut(word) {
            *taken ^= bit;
        }
    }

    /// Takes out the oldest value that is left. The device is done with the work queue.
    pub(crate) fn take_oldest(&mut self, _: &Quiescent) -> Option<T> {
        let oldest = self.oldest()?;
        self.take(oldest)
    }

    /// Moves the value with this id to another ledger, which owns it from here on. Returns false, and changes nothing,
    /// if the value is not in flight, was moved before, or if the other ledger is full.
    pub(crate) fn move_to(&mut self, id: u64, other: &mut Poster<T>) -> bool {
        if other.free() == 0 {
            return false;
        }
        let Some(value) = self.take(id) else { return false };
        other.push(value);
        true
    }

    /// Takes out the value with this id; `None` if it is not in flight or was taken before. The device may still have
    /// its request.
    fn take(&mut self, id: u64) -> Option<T> {
        if !self.has(id) {
            return None;
        }
        let (at, mut oldest) = (self.retirer.0.0, self.retirer.oldest());
        // SAFETY: the value is in flight and was not taken out before (`has`). The poster wrote the value before it
        // stored the `posted` that this end has acquired. Only this end takes values out. Only the value with the id
        // `oldest` can be the sole value (ledger 3).
        let value = unsafe { at.take(id, id == oldest) };
        self.flip(id);
        while self.is_taken(oldest) {
            self.flip(oldest);
            oldest = after(oldest, 1);
        }
        at.set_oldest(oldest);
        Some(value)
    }

    /// The retirer, if no value is left: it knows nothing of the values that were taken out of their turn.
    pub(crate) fn into_retirer(self) -> Option<Retirer<T>> {
        (!self.has_any()).then_some(self.retirer)
    }
}
