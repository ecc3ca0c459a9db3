//! The right to post to a queue pair or a shared receive queue.
//!
//! The data path posts through the address of an object, and not through its handle, so that a post touches no other
//! cache line. Instead each queue has a [`PostRight`]. The object is ended only if nobody has a right any more, or if
//! all rights are given back with the call that ends it.
#![forbid(unsafe_code)]

use super::ObjectPtr;
use std::{mem, sync::Arc};

/// The right to post to one queue of an object. While a right exists, the object is alive. A right cannot be cloned.
#[derive(Debug)]
pub(crate) struct PostRight(
    /// # Invariants
    ///
    /// 0. A clone of the `right` in the [`Rights`] of that object.
    Arc<()>,
);

/// The means to post to one queue of an object: its address, the function of its provider, and the right.
pub(crate) struct PostEnd<T, V> {
    /// # Invariants
    ///
    /// 0. The object is alive while `right` exists. Nobody else has the right for this queue.
    raw: ObjectPtr<T>,
    /// 1. The function of the object's provider that posts to this queue.
    verb: V,
    right: PostRight,
    /// 2. Whether the object has all functions of `ibv_wr_*` that its requests call.
    has_sessions: bool,
}

impl<T, V> PostEnd<T, V> {
    /// The address of the object, the function, the right, and whether the queue may post in sessions.
    pub(crate) fn into_parts(self) -> (ObjectPtr<T>, V, PostRight, bool) {
        (self.raw, self.verb, self.right, self.has_sessions)
    }

    pub(super) fn new(raw: ObjectPtr<T>, verb: V, right: PostRight, has_sessions: bool) -> Self {
        Self { raw, verb, right, has_sessions }
    }

    /// The means to post to an object that has no handle, for tests. The object outlives them.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn without_handle(raw: std::ptr::NonNull<T>, verb: V, has_sessions: bool) -> Self {
        Self { raw: ObjectPtr(raw), verb, right: PostRight(Arc::default()), has_sessions }
    }
}

/// What the handle of an object keeps besides the object. It says whether the object may end.
pub(crate) trait Kept: Default {
    /// Whether nobody posts to the object.
    fn is_unused(&mut self) -> bool;
}

impl Kept for () {
    fn is_unused(&mut self) -> bool {
        true
    }
}

/// The rights to post to an object.
#[derive(Default)]
pub(crate) struct Rights {
    /// Each right is a clone of this.
    right: Arc<()>,
    /// Whether the rights were given out. That happens once.
    are_out: bool,
    /// Whether the object has all functions of `ibv_wr_*` that its requests call.
    pub(super) has_sessions: bool,
}

impl Kept for Rights {
    fn is_unused(&mut self) -> bool {
        Arc::get_mut(&mut self.right).is_some()
    }
}

impl Rights {
    /// A right, for a queue whose right was not given out yet or has come back.
    pub(super) fn right(&self) -> PostRight {
        PostRight(Arc::clone(&self.right))
    }

    /// Notes that the rights are given out. Returns false if they were given out before.
    pub(super) fn give_out(&mut self) -> bool {
        !mem::replace(&mut self.are_out, true)
    }

    /// Whether the right is one of these.
    pub(super) fn owns(&self, PostRight(right): &PostRight) -> bool {
        Arc::ptr_eq(right, &self.right)
    }
}
