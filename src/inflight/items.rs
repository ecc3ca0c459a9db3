//! Items of a vector, taken out from the front.
#![allow(unsafe_code, reason = "moves items out of a vector that keeps its memory")]

use std::{mem, ptr};

/// Takes items out of a vector from the front. When this is dropped, also by a panic, the items that are left are in
/// the vector again.
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
        // SAFETY: 0 is at most the capacity, and this owns the items until it is dropped.
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
        // The subtraction wraps around: of items of size 0 there may be more than there are addresses after the first.
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
            // SAFETY: `left` items start at `next`, and both places are in the memory of the vector (0).
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
    /// 0. From the `next` of `items` up to their `end`, both included.
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
        // SAFETY: `next` is before the end of the items (0), so it points to an item that belongs to `items` and was
        // not taken yet.
        Some(unsafe { item.read() })
    }
}
