//! How a sender has its half of the queue pair: it owns the half, or borrows it from a [`SharedSender`].
//!
//! [`SharedSender`]: super::SharedSender

use super::after::WakeOnDrop;
use super::desk::Broken;
use super::lane_handle::LaneHandle;
use super::posted_all::PostedAll;
use crate::queue::SendHalf;
use crate::seal::Key;
use std::fmt;
use std::task::Waker;

/// How a [`Sender`](super::Sender) has its half of the queue pair: [`Owned`] or [`Borrowed`]. Sealed.
pub trait SenderMode<B, T>: sealed::Sealed<B, T> {}

pub(super) mod sealed {
    use super::*;

    pub trait Sealed<B, T> {
        fn owned(&self, key: Key) -> &Owned<B, T>;

        /// The key keeps programs from calling this: they could exchange the half for another one.
        fn owned_mut(&mut self, key: Key) -> &mut Owned<B, T>;

        /// How much room posts leave for other tasks.
        fn kept(&self, key: Key) -> u32;

        /// Wakes tasks: now, or when the lock of the shared sender is released.
        fn wake(&mut self, waking: Waking<B>, key: Key);
    }
}

/// The mode of a plain [`Sender`](super::Sender): it owns its half of the pair. A program names this only in code for
/// every [`SenderMode`].
pub struct Owned<B, T> {
    // `half` is declared before `lane`, so that it is dropped before `lane`. The drop of the pair's last half sends
    // mail to the poller, and the drop of `lane` can then end the driver. In this order the driver reads the mail
    // before it ends, and can free what the pair had in flight.
    pub(super) half: SendHalf<B, T>,
    pub(super) lane: LaneHandle<B>,
}

impl<B, T> SenderMode<B, T> for Owned<B, T> {}

impl<B, T> sealed::Sealed<B, T> for Owned<B, T> {
    #[inline(always)]
    fn owned(&self, _: Key) -> &Self {
        self
    }

    #[inline(always)]
    fn owned_mut(&mut self, _: Key) -> &mut Self {
        self
    }

    #[inline(always)]
    fn kept(&self, _: Key) -> u32 {
        0
    }

    fn wake(&mut self, waking: Waking<B>, _: Key) {
        drop(waking);
    }
}

/// The mode of a [`LentSender`](super::LentSender): it borrows the half of a [`SharedSender`](super::SharedSender),
/// under its lock. A program names this only in code for every [`SenderMode`].
pub struct Borrowed<'s, B, T> {
    owned: &'s mut Owned<B, T>,
    /// How much room posts leave for other tasks.
    kept: u32,
    deferred: &'s mut Deferred<B>,
}

impl<'s, B, T> Borrowed<'s, B, T> {
    #[inline(always)]
    pub(super) fn new(owned: &'s mut Owned<B, T>, kept: u32, deferred: &'s mut Deferred<B>) -> Self {
        Self { owned, kept, deferred }
    }
}

impl<B, T> SenderMode<B, T> for Borrowed<'_, B, T> {}

impl<B, T> sealed::Sealed<B, T> for Borrowed<'_, B, T> {
    #[inline(always)]
    fn owned(&self, _: Key) -> &Owned<B, T> {
        self.owned
    }

    #[inline(always)]
    fn owned_mut(&mut self, _: Key) -> &mut Owned<B, T> {
        self.owned
    }

    #[inline(always)]
    fn kept(&self, _: Key) -> u32 {
        self.kept
    }

    #[cold]
    fn wake(&mut self, waking: Waking<B>, _: Key) {
        self.deferred.push(waking);
    }
}

/// What wakes tasks, and therefore waits until the lock of the [`SharedSender`](super::SharedSender) is released. Its
/// drop wakes them.
pub(super) struct Deferred<B>(Option<Box<Wakings<B>>>);

/// The usual loan defers nothing, and so costs one word.
struct Wakings<B> {
    wakings: Vec<Waking<B>>,
    /// The first in the line of the shared sender.
    first: WakeOnDrop,
}

impl<B> Deferred<B> {
    pub(super) fn none() -> Self {
        Self(None)
    }

    fn push(&mut self, waking: Waking<B>) {
        self.wakings().wakings.push(waking);
    }

    /// Wakes the first in the line.
    pub(super) fn wake_first(&mut self, first: Option<Waker>) {
        self.wakings().first = WakeOnDrop(first);
    }

    fn wakings(&mut self) -> &mut Wakings<B> {
        self.0.get_or_insert_with(|| Box::new(Wakings { wakings: Vec::new(), first: WakeOnDrop(None) }))
    }
}

impl<B> Drop for Deferred<B> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cold]
        #[inline(never)]
        fn wakes<B>(wakings: Box<Wakings<B>>) {
            drop(wakings);
        }
        if let Some(wakings) = self.0.take() {
            wakes(wakings);
        }
    }
}

/// Its drop wakes tasks.
#[allow(missing_debug_implementations, reason = "never leaves the crate")]
#[allow(unnameable_types, reason = "in a signature of a sealed trait only")]
pub struct Waking<B> {
    /// Requests of a call that failed after it had posted them. The drop abandons them.
    #[allow(dead_code, reason = "is dropped")]
    pub(super) posted: Option<PostedAll<B>>,
    #[allow(dead_code, reason = "is dropped")]
    pub(super) broken: Option<Broken<B>>,
}

impl<B, T> fmt::Debug for Owned<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").field("half", &self.half).finish_non_exhaustive()
    }
}

impl<B, T> fmt::Debug for Borrowed<'_, B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").field("half", &self.owned.half).field("kept", &self.kept).finish_non_exhaustive()
    }
}
