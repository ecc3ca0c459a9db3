//! Completion channels that several completion queues share.

use super::completion::Completion;
use super::event_channel::EventChannel;
use super::options::{CompletionQueueError, CompletionQueueOptions};
use super::poller::Poller;
use super::queue::CompletionQueue;
use super::wait::{self, WaitError, WakeFor};
use crate::device::CompletionQueueId;
use crate::domain::brand::Branded;
use crate::domain::{Brand, ProtectionDomain};
use crate::readiness::{Readiness, until_readable};
use crate::verb_error::VerbError;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A completion channel that several completion queues of domain `B` share, so that a program can wait for any of them.
///
/// Each queue that is made from it has a poller of its own. The poller may poll and wait as usual, also on another
/// thread. The channel says which queues have completions: arm the pollers, then wait here.
///
/// A completion queue that is not made from a channel has one for itself.
///
/// # Examples
///
/// ```
/// # use interlock::{Context, Limits};
/// # use std::time::Duration;
/// # interlock::domain! { struct Docs; }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = Context::open("soft0")?;
/// # let port = context.active_port()?;
/// # let domain = context.named_domain(Docs)?;
/// let mut channel = domain.completion_channel()?;
/// let (sends, sent) = channel.completion_queue(4)?;
/// let (receives, received) = channel.completion_queue(4)?;
/// let pair = domain.reliable_on(&sends, &receives, &Limits::default())?.into_init(&port)?;
/// # let myself = pair.endpoint();
/// # let mut pair = pair.connect(&myself)?;
/// # pair.post_receive(domain.buffer(8)?)?;
/// # pair.post_send(domain.buffer(8)?)?;
/// let mut pollers = [sent, received];
/// for _ in 0..2 {
///     let (which, completion) = channel.wait_any(&mut pollers, Duration::from_secs(1))?.expect("in time");
///     println!("{}: {:?}", pollers[which].id(), completion.check()?);
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_comp_channel")]
#[doc(alias = "ibv_create_comp_channel")]
#[doc(alias = "ibv_destroy_comp_channel")]
pub struct CompletionChannel<B> {
    inner: Arc<EventChannel>,
    /// The index of the poller that [`wait_any`](Self::wait_any) polls first. It advances, so that no poller starves.
    first: usize,
    brand: Branded<B>,
}

/// How a domain makes completion channels.
impl<B: Brand> ProtectionDomain<B> {
    /// A completion channel. The completion queues that are made from it can be waited for together.
    ///
    /// `ibv_create_comp_channel(3)`.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`: no more descriptors.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn completion_channel(&self) -> Result<CompletionChannel<B>, VerbError> {
        Ok(CompletionChannel { inner: EventChannel::shared(&self.inner)?, first: 0, brand: PhantomData })
    }
}

impl<B> CompletionChannel<B> {
    /// A completion queue for `entries` completions on this channel, and its one poller. The queue may outlive this
    /// handle.
    ///
    /// `ibv_create_cq(3)`.
    ///
    /// # Errors
    ///
    /// As [`ProtectionDomain::completion_queue`](crate::ProtectionDomain::completion_queue).
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(&self, entries: u32) -> Result<(CompletionQueue<B>, Poller<B>), VerbError> {
        self.completion_queue_with(entries, &CompletionQueueOptions::default()).map_err(CompletionQueueError::into_verb)
    }

    /// As [`completion_queue`](Self::completion_queue), with options: the completion vector and the polling interface.
    ///
    /// # Errors
    ///
    /// As [`ProtectionDomain::completion_queue_with`](crate::ProtectionDomain::completion_queue_with).
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn completion_queue_with(
        &self,
        entries: u32,
        options: &CompletionQueueOptions,
    ) -> Result<(CompletionQueue<B>, Poller<B>), CompletionQueueError> {
        CompletionQueue::create(&self.inner, entries, options)
    }

    /// Waits for the next completion of any of `pollers`, for `timeout` at most. Returns the index of the poller and
    /// the completion; `None` if no completion came in time.
    ///
    /// Each call polls and arms all of the pollers. For very many, use [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// [`WaitError`], but never `TimedOut`. [`WaitError::OfPoller`] names the poller that failed.
    pub fn wait_any(
        &mut self,
        pollers: &mut [Poller<B>],
        timeout: Duration,
    ) -> Result<Option<(usize, Completion<B>)>, WaitError> {
        if let Some(index) = pollers.iter().position(|poller| !Arc::ptr_eq(&poller.queue().channel, &self.inner)) {
            return Err(WaitError::OtherChannel { index });
        }
        wait::wait(&mut AnyOf { channel: self, pollers }, Duration::ZERO, timeout)
    }

    /// Waits until a queue of this channel is ready, for `timeout` at most. Returns the queue's id; `None` if no queue
    /// became ready.
    ///
    /// A queue becomes ready once for each time that it was [armed](Poller::arm), and when one of its pairs was
    /// destroyed. So arm each poller until it is [empty](super::Armed::Empty), wait here, then arm the poller of the
    /// returned queue until that poller is empty again. If another thread also waits with that poller, the queue may
    /// have no completion left.
    ///
    /// Some devices make no event for some completions. So wait no longer than the shortest [`Poller::next_timer`] of
    /// the channel's pollers. If no queue became ready, arm all of them again. [`wait_any`](Self::wait_any) does that
    /// by itself.
    ///
    /// # Errors
    ///
    /// [`WaitError`], but never `TimedOut`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn next(&mut self, timeout: Duration) -> Result<Option<CompletionQueueId>, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(id) = self.poll()? {
                return Ok(Some(id));
            }
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(left, std::iter::empty())?;
        }
    }

    /// As [`next`](Self::next), without waiting, for an event loop of the program's own: call it until it returns
    /// `None`, then wait until the [`readiness`](Self::readiness) is readable.
    ///
    /// # Errors
    ///
    /// The channel could not be read: `EIO` if the device is gone.
    pub fn poll(&mut self) -> Result<Option<CompletionQueueId>, WaitError> {
        if let Some(id) = self.inner.next_ready() {
            return Ok(Some(id));
        }
        self.inner.clear_waker();
        self.inner.take_events(None)?;
        Ok(self.inner.next_ready())
    }

    /// A descriptor for an event loop of the program's own: readable when [`poll`](Self::poll) may have something.
    ///
    /// # Errors
    ///
    /// No more descriptors (`EMFILE`, `ENFILE`).
    pub fn readiness(&self) -> Result<Readiness, VerbError> {
        self.inner.readiness()
    }

    /// As [`Poller::next_timer`], but only for the timers of the device. Ask each poller for its own limit too.
    pub fn next_timer(&self) -> Option<Duration> {
        self.inner.raw().domain().context.next_timer()
    }

    /// Sleeps until there is an event, but no longer than `left` or the shortest of the `next` times.
    fn sleep(&self, left: Duration, next: impl Iterator<Item = Duration>) -> Result<(), WaitError> {
        until_readable(self.inner.fds()?, next.chain(self.next_timer()).fold(left, Duration::min))?;
        Ok(())
    }
}

/// Several pollers of one channel.
struct AnyOf<'c, B> {
    channel: &'c mut CompletionChannel<B>,
    pollers: &'c mut [Poller<B>],
}

impl<B> AnyOf<'_, B> {
    /// The error of one poller. The next call begins with the poller after it, so one that always fails does not keep
    /// the program from the others.
    fn failed(&mut self, index: usize, error: impl Into<WaitError>) -> WaitError {
        self.channel.first = index + 1;
        WaitError::OfPoller { index, source: Box::new(error.into()) }
    }
}

impl<B> wait::Source for AnyOf<'_, B> {
    type Item = (usize, Completion<B>);

    fn poll(&mut self) -> Result<Option<Self::Item>, WaitError> {
        let count = self.pollers.len();
        for step in 0..count {
            let index = self.channel.first.wrapping_add(step) % count;
            let Some(poller) = self.pollers.get_mut(index) else { continue };
            match poller.poll() {
                Ok(None) => {}
                Ok(Some(completion)) => {
                    self.channel.first = index + 1;
                    return Ok(Some((index, completion)));
                }
                Err(error) => return Err(self.failed(index, error)),
            }
        }
        Ok(None)
    }

    fn arm(&mut self) -> Result<(), WaitError> {
        let mut pollers = self.pollers.iter_mut().enumerate();
        match pollers.find_map(|(index, poller)| Some((index, poller.request_event(WakeFor::Any).err()?))) {
            Some((index, error)) => Err(self.failed(index, error)),
            None => Ok(()),
        }
    }

    fn sleep(&mut self, left: Duration) -> Result<(), WaitError> {
        self.channel.sleep(left, self.pollers.iter().filter_map(Poller::next_timer))
    }

    fn take_events(&mut self) -> Result<bool, WaitError> {
        self.channel.inner.clear_waker();
        Ok(self.channel.inner.take_events(None)? > 0)
    }
}

impl<B> fmt::Debug for CompletionChannel<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("queues", &self.inner.members()).finish_non_exhaustive()
    }
}
