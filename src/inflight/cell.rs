//! A cell for one value that changes owners.
#![allow(unsafe_code, reason = "moves values in and out of memory that several parties see")]

use crate::sync::UnsafeCell;
use core::mem::MaybeUninit;

/// A cell for one value. At any time one party owns the cell: the counters of a ledger, or the states of a slab, say
/// which. If a value is in the cell when the cell is dropped, the value is leaked.
#[repr(transparent)]
pub(super) struct Cell<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: shared access reaches the value only through `put` and `take`, whose callers own the cell. So the value may
// move to another thread, which `T: Send` allows.
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
