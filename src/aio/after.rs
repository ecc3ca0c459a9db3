//! What must run after a lock was released: wakers, and drops of memory.

use crate::completion::{Completion, Leftover};
use arrayvec::ArrayVec;
use std::task::Waker;

/// Wakes, and drops of wakers and of memory, that must run after the lock is released.
///
/// A waker is code of the program's runtime, and a wake may poll the future at once. The drop of memory may be code of
/// the program too: [`ForeignMemory`](crate::memory::ForeignMemory). Neither may run while this thread holds a lock.
///
/// The drop of an `After` runs the entries that are left. If a waker panics, the drop runs while the panic unwinds, so
/// the other wakers are still woken.
pub(super) struct After<B>(ArrayVec<Todo<B>, ROOM>);

const ROOM: usize = 16;

/// One completion and the end of an attempt add at most this many entries together.
const ROOM_FOR_ONE: usize = 8;

enum Todo<B> {
    Wake(Waker),
    WakeAll(Vec<Waker>),
    DropWaker(#[allow(dead_code, reason = "is dropped")] Waker),
    DropCompletion(#[allow(dead_code, reason = "is dropped")] Completion<B>),
    DropLeftover(#[allow(dead_code, reason = "is dropped")] Leftover),
}

impl<B> After<B> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self(ArrayVec::new_const())
    }

    /// Whether [`ROOM_FOR_ONE`] more entries fit.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.0.remaining_capacity() >= ROOM_FOR_ONE
    }

    /// Whether [`ROOM_FOR_ONE`] entries fit besides one more.
    pub(super) fn has_room_to_spare(&self) -> bool {
        self.0.remaining_capacity() > ROOM_FOR_ONE
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn wake(&mut self, waker: Waker) {
        self.push(Todo::Wake(waker));
    }

    /// Wakes all of these. They count as one entry.
    pub(super) fn wake_all(&mut self, wakers: Vec<Waker>) {
        self.push(Todo::WakeAll(wakers));
    }

    pub(super) fn drop_waker(&mut self, waker: Waker) {
        self.push(Todo::DropWaker(waker));
    }

    pub(super) fn drop_completion(&mut self, completion: Completion<B>) {
        self.push(Todo::DropCompletion(completion));
    }

    /// Drops what the poller has no more use for.
    pub(super) fn drop_leftover(&mut self, leftover: Leftover) {
        self.push(Todo::DropLeftover(leftover));
    }

    fn push(&mut self, todo: Todo<B>) {
        let pushed = self.0.try_push(todo);
        debug_assert!(pushed.is_ok(), "callers ask for room first");
    }

    /// Runs all entries. The caller must hold no lock.
    pub(super) fn run(&mut self) {
        while let Some(todo) = self.0.pop() {
            match todo {
                Todo::Wake(waker) => waker.wake(),
                Todo::WakeAll(wakers) => wake_all(wakers),
                other => drop(other),
            }
        }
    }
}

/// Wakes all wakers. If one panics, those after it are still woken.
pub(super) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    struct Rest<I: Iterator<Item = Waker>>(I);
    impl<I: Iterator<Item = Waker>> Drop for Rest<I> {
        fn drop(&mut self) {
            self.0.by_ref().for_each(Waker::wake);
        }
    }
    // If a waker panics, the drop of `rest` runs the remaining wakers.
    let mut rest = Rest(wakers.into_iter());
    rest.0.by_ref().for_each(Waker::wake);
}

impl<B> Drop for After<B> {
    #[inline(always)]
    fn drop(&mut self) {
        /// Runs the rest after a waker has panicked. A second panic ends the process, as always during a panic.
        struct Rest<'a, B>(&'a mut After<B>);
        impl<B> Drop for Rest<'_, B> {
            fn drop(&mut self) {
                self.0.run();
            }
        }
        if !self.0.is_empty() {
            Rest(self).0.run();
        }
    }
}

/// The drop of this wakes the waker.
pub(super) struct WakeOnDrop(pub(super) Option<Waker>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}
