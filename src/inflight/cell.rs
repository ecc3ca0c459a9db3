//! Room for one value that goes from one owner to another.
#![allow(unsafe_code, reason = "moves values in and out of memory that several parties see")]

use crate::sync::UnsafeCell;
use core::mem::MaybeUninit;

/// Room for one value. At any time one party owns the cell; the counters of a ledger, or the states of a slab, say
/// which. A value that is in the cell at its end is leaked.
#[repr(transparent)]
pub(super) struct Cell<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: shared access reaches the value by `put` and `take` only, whose caller owns the cell. The value may change
// threads so, and is `Send`.
unsafe impl<T: Send> Sync for Cell<T> {}

impl<T> Cell<T> {
    pub(super) fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Moves a value in.
    ///
    /// # Safety
    ///
    /// The cell is the caller's, and is empty. (A value that it holds would be leaked.)
    #[inline(always)]
    pub(super) unsafe fn put(&self, value: T) {
        // SAFETY: nobody else uses the cell (caller); `MaybeUninit<T>` and `T` have one layout.
        self.0.with_mut(|cell| unsafe { cell.cast::<T>().write(value) });
    }

    /// Moves the value out.
    ///
    /// # Safety
    ///
    /// The cell is the caller's, and holds a value. Whoever takes the value a second time uses only one of the two.
    #[inline(always)]
    pub(super) unsafe fn take(&self) -> T {
        // SAFETY: nobody else uses the cell, which holds a value (caller); `MaybeUninit<T>` and `T` have one layout.
        self.0.with_mut(|cell| unsafe { cell.cast::<T>().read() })
    }

    /// Lets a model see that the cell has no user any more.
    #[cfg(loom)]
    pub(super) fn end(&self) {
        self.0.with_mut(|_| ());
    }
}
