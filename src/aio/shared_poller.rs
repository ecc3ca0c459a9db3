//! The handle by which tasks share a poller.

use super::desk::{Desk, Poller};
use super::driver::Driver;
use super::outcome::PollerCounters;
use crate::completion::Completion;
use crate::device::CompletionQueueId;
use crate::domain::DomainId;
use std::fmt;
use std::sync::Arc;

/// The poller of a completion queue, shared by all tasks that wait for its requests. A handle: clones name the same
/// poller.
///
/// Whoever waits polls: a future that is polled looks at the completion queue itself, and keeps what it finds for
/// others. Only if nothing has come does it sleep, and then a [`Driver`] wakes it. Without a driver everything works
/// too, but futures that wait poll again and again.
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
///     receiver.post(domain.buffer(64)?)?;
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

    /// The driver of this poller; `None` if there is one already. After a driver was dropped there can be another one.
    pub fn driver(&self) -> Option<Driver<B>> {
        Driver::enter(&self.desk)
    }

    /// A completion of a queue pair that uses the same completion queue and was not [split](Self::split) here, the
    /// oldest first.
    ///
    /// A program that only uses pairs that it splits here need not call this. The receives of a pair that was dropped
    /// before it was split are here, except that flushed memory of a [`Pool`](crate::memory::Pool) goes home. There are
    /// at most as many as the completion queue has room for; then the oldest that failed is dropped.
    ///
    /// A message that comes before its pair is split is here until then. So a program that calls this while a pair is
    /// being connected may take a message that is then missing in the connection.
    pub fn take_unclaimed(&self) -> Option<Completion<B>> {
        self.desk.take_unclaimed()
    }

    /// How often tasks slept and the driver looked.
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
