//! Items of a vector, taken out from the front.
#![allow(unsafe_code, reason = "moves items out of a vector that keeps its memory")]

use std::{mem, ptr};

/// Takes items out of a vector from the front. The others stay in the vector, also when the program's code panics.
pub(super) struct Items<'v, X> {
    /// # Invariants
    ///
    /// 0. Of length 0. The items from `next` to `end` in its memory belong to this.
    vector: &'v mut Vec<X>,
    next: *const X,
    end: *const X,
}

impl<'v, X> Items<'v, X> {
    /// From one item to the next, in bytes. Items without a size are told apart by addresses one byte apart.
    const STEP: usize = if mem::size_of::<X>() == 0 { 1 } else { mem::size_of::<X>() };

    #[inline(always)]
    pub(super) fn new(vector: &'v mut Vec<X>) -> Self {
        let len = vector.len();
        // SAFETY: 0 is at most the length; the items belong to this until it is dropped.
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
        // Wraps: of items without a size there may be more than there are addresses after the first.
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
            // SAFETY: both in the memory of the vector (0).
            unsafe { ptr::copy(next, vector.as_mut_ptr(), left) };
        }
        // SAFETY: so many items are there, and belong to nobody else (0).
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

/// Some of the [`Items`], the first ones.
pub(super) struct First<'i, 'v, X> {
    items: &'i mut Items<'v, X>,
    /// # Invariants
    ///
    /// 0. From the `next` of `items` up to their `end`.
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
        // SAFETY: before the end of the items (0), so it is one of them, which belongs to `items` and was not taken
        // yet.
        Some(unsafe { item.read() })
    }
}
