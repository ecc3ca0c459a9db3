//! The handle by which tasks share a poller.

use super::desk::{Desk, Poller};
use super::driver::Driver;
use super::outcome::PollerCounters;
use crate::completion::Completion;
use crate::device::CompletionQueueId;
use crate::domain::DomainId;
use std::fmt;
use std::sync::Arc;

/// The poller of a completion queue, shared by all tasks that wait for its requests. This is a handle: clones name the
/// same poller.
///
/// Whoever waits polls: a future polls the completion queue itself, and puts completions of other requests where their
/// tasks find them. The future sleeps only if its own completion has not come. Then a [`Driver`] wakes it. Without a
/// driver everything works too, but futures that wait poll again and again.
///
/// # Examples
///
/// Two pairs of one process; the driver has a thread of its own:
///
/// ```
/// use interlock::{Context, Limits};
/// use interlock::aio::{SharedPoller, block_on};
/// interlock::domain! { struct Docs; }
///
/// let domain = Context::open("soft0")?.named_domain(Docs)?;
/// let port = domain.context().active_port()?;
/// let (queue, poller) = domain.completion_queue(16)?;
/// let left = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
/// let right = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
/// let (to_left, to_right) = (left.endpoint(), right.endpoint());
/// let (left, right) = (left.connect(&to_right)?, right.connect(&to_left)?);
///
/// let shared = SharedPoller::new(poller);
/// let driver = shared.driver().expect("there is no other driver");
/// std::thread::spawn(move || driver.run_on_thread());
/// let (mut sender, _) = shared.split(left)?;
/// let (_, mut receiver) = shared.split(right)?;
///
/// block_on(async {
///     receiver.post_receive(domain.buffer(64)?)?;
///     let mut greeting = domain.buffer(64)?;
///     greeting.write(b"hello")?;
///     let greeting = sender.send(greeting)?.await?; // the buffer is back
///     let message = receiver.next().await.expect("a receive is posted")?.into_buffer().unwrap();
///     assert_eq!(message[..], greeting[..]);
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedPoller<B> {
    desk: Arc<Desk<B>>,
    id: CompletionQueueId,
}

impl<B> SharedPoller<B> {
    /// Shares `poller`.
    pub fn new(poller: Poller<B>) -> Self {
        let id = poller.id();
        Self::of(Arc::new(Desk::new(poller)), id)
    }

    fn of(desk: Arc<Desk<B>>, id: CompletionQueueId) -> Self {
        desk.enter();
        Self { desk, id }
    }

    #[inline(always)]
    pub(super) fn desk(&self) -> &Arc<Desk<B>> {
        &self.desk
    }

    /// The domain of the completion queue.
    pub(super) fn domain(&self) -> DomainId {
        self.desk.with(|state| state.poller.queue().domain.id())
    }

    /// The id of the completion queue.
    pub fn id(&self) -> CompletionQueueId {
        self.id
    }

    /// The driver of this poller. `None` while there is another one. When a driver was dropped, the next call makes
    /// one.
    pub fn driver(&self) -> Option<Driver<B>> {
        Driver::enter(&self.desk)
    }

    /// The oldest kept completion of a queue pair that uses the same completion queue and was not [split](Self::split)
    /// here, or of a shared receive queue of which there is no [stream](Self::receives_of).
    ///
    /// A program that splits all its pairs here, and makes those streams, need not call this. If a pair is dropped
    /// before it is split, its receives come out here, except that flushed memory of a [`Pool`](crate::memory::Pool)
    /// goes home. At most as many completions are kept as the completion queue has room for. Then the oldest that
    /// failed is dropped, or the oldest if none failed.
    ///
    /// A message that comes before its pair is split is kept here until the split. If a program calls this while a pair
    /// is being connected, it may take a message that is then missing in the connection.
    pub fn take_unclaimed(&self) -> Option<Completion<B>> {
        self.desk.take_unclaimed()
    }

    /// How often tasks slept, and how many turns the driver took.
    pub fn counters(&self) -> PollerCounters {
        self.desk.with(|state| state.counters)
    }

    /// How many completions named no request in flight: see [`Poller::unknown_completions`].
    pub fn unknown_completions(&self) -> u64 {
        self.desk.with(|state| state.poller.unknown_completions())
    }
}

impl<B> Clone for SharedPoller<B> {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.desk), self.id)
    }
}

impl<B> Drop for SharedPoller<B> {
    fn drop(&mut self) {
        self.desk.leave();
    }
}

impl<B> fmt::Debug for SharedPoller<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPoller").field("id", &self.id).finish_non_exhaustive()
    }
}
