//! Values whose end consumes them.
#![allow(unsafe_code, reason = "moves a value out in its drop")]

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// What is to be done with a value in the end.
pub(crate) trait Finish {
    fn finish(self);
}

/// A value that is [finished](Finish::finish) when this is dropped, unless it was taken out before.
///
/// `Drop` has no more than `&mut self`, from which nothing can be moved out.
pub(crate) struct FinishOnDrop<T: Finish>(
    /// # Invariants
    ///
    /// 0. Holds a value, which `into_inner` and `drop` move out. Nothing uses it afterwards.
    ManuallyDrop<T>,
);

impl<T: Finish> FinishOnDrop<T> {
    #[inline(always)]
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    /// The value, which is not finished any more.
    #[inline(always)]
    pub(crate) fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: there is a value (0), and `this` is neither used again nor dropped.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T: Finish> Drop for FinishOnDrop<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: there is a value (0), and nothing is used after its drop.
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
