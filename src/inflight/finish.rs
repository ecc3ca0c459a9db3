//! Values whose last step consumes them.
#![allow(unsafe_code, reason = "moves a value out in its drop")]

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A value whose last step consumes it.
pub(crate) trait Finish {
    fn finish(self);
}

/// A value that is [finished](Finish::finish) when this is dropped, unless it was taken out before.
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

    /// Takes the value out. It is then not finished by this.
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
