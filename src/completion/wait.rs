//! Waiting for a completion without ever sleeping through one.
//!
//! An armed queue raises one event, for the first completion *after* it was armed. A completion from before raises
//! none. So the order is: poll, take old events, arm, poll again, sleep, and start over. Everything in this library
//! that waits goes through [`arm`] and [`wait`] here. They know nothing of devices, so that models can try every order
//! in which a device may complete, and tests can complete a request at each step.

use super::completion::Completion;
use super::poller::{PollError, Poller, PollerParts};
use crate::readiness::{Readiness, until_readable};
use crate::verb_error::VerbError;
use std::io;
use std::time::{Duration, Instant};

/// Which completions wake a sleeper.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WakeFor {
    /// Any completion.
    #[default]
    Any,
    /// Receives of messages that were [sent solicited](crate::WorkRequest::solicited), and failures.
    ///
    /// For a side that acts on only a few of many messages. Other completions may wake the sleeper too, if an earlier
    /// wait has left the queue armed for any completion. Linux soft-RoCE does not wake for failures, so choose a short
    /// timeout there.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    Solicited,
}

/// How to wait, for [`Poller::wait_for`]. A [`Duration`] converts into a `Wait` by [`Wait::new`].
///
/// # Examples
///
/// ```
/// use interlock::completion::{Wait, WakeFor};
/// use std::time::Duration;
///
/// // Spins for 20 µs first, which is shorter than a sleep and its wake-up.
/// let spinning = Wait { spin: Duration::from_micros(20), ..Wait::new(Duration::from_secs(1)) };
/// let urgent = Wait { wake_for: WakeFor::Solicited, ..Wait::new(Duration::from_secs(1)) };
/// assert_eq!(spinning.wake_for, WakeFor::Any);
/// # _ = urgent;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wait {
    /// How long to wait at most, spinning included.
    pub timeout: Duration,
    /// For how long to poll before going to sleep. 0 by default.
    pub spin: Duration,
    /// Which completions end the sleep. The wait then returns the next completion, solicited or not.
    pub wake_for: WakeFor,
}

impl Wait {
    /// Waits for any completion, for `timeout` at most, without spinning.
    pub const fn new(timeout: Duration) -> Self {
        Self { timeout, spin: Duration::ZERO, wake_for: WakeFor::Any }
    }
}

impl From<Duration> for Wait {
    fn from(timeout: Duration) -> Self {
        Self::new(timeout)
    }
}

/// Why a wait gave no completion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// No completion came in time.
    #[error(
        "no completion within {0:?} (is anything in flight? A send waits for a receive of the peer, by default for ever; \
         an unsignalled request completes only with a later signalled one; see docs/failures.md#timed-out)"
    )]
    TimedOut(Duration),
    /// See [`PollError`].
    #[error(transparent)]
    Poll(#[from] PollError),
    /// Arming the queue or reading its channel failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Waiting for the channel failed.
    #[error("cannot wait on the completion channel: poll the completion queues instead")]
    Io(#[from] io::Error),
    /// One of several pollers failed, or could not be armed. The next call begins with the poller after it.
    #[error("poller {index} failed: wait without it")]
    OfPoller {
        /// The index of the poller.
        index: usize,
        /// Why it failed.
        source: Box<WaitError>,
    },
    /// A poller belongs to another channel, so its events do not come to this channel.
    #[error("poller {index} belongs to another completion channel: create its completion queue on this one")]
    OtherChannel {
        /// The index of the poller.
        index: usize,
    },
}

/// The result of arming a poller.
#[must_use = "it may hold a completion, for which no event comes"]
#[derive(Debug)]
pub enum Armed<B> {
    /// There is a completion already. If it came before the queue was armed, it raises no event. So do not wait: poll,
    /// or arm again.
    Ready(Completion<B>),
    /// The queue is armed, and was empty after that: the next completion makes the [`Readiness`] readable.
    Empty,
}

/// A source of completions, or of something like them, to wait for.
pub(super) trait Source {
    type Item;
    /// Polls: the next item, if there is one now.
    fn poll(&mut self) -> Result<Option<Self::Item>, WaitError>;
    /// Arms the source, so that a later item raises an event.
    fn arm(&mut self) -> Result<(), WaitError>;
    /// Sleeps until there is an event, for `left` at most. May wake up early.
    fn sleep(&mut self, left: Duration) -> Result<(), WaitError>;
    /// Takes all events that are waiting, and says whether there were any.
    fn take_events(&mut self) -> Result<bool, WaitError>;
}

/// Returns an item if there is one now. Otherwise arms the source, and polls once more. If this returns `None`, the
/// source is armed, and the next item raises an event.
pub(super) fn arm<S: Source>(source: &mut S) -> Result<Option<S::Item>, WaitError> {
    if let Some(item) = source.poll()? {
        return Ok(Some(item));
    }
    // Take the events of earlier armings, so that they do not pile up. The poll at the end comes after this call, so
    // that poll finds the completions that raised these events.
    source.take_events()?;
    source.arm()?;
    // A completion that came before the arming raises no event, so only a poll finds it.
    source.poll()
}

/// Returns an item that exists already, or one that comes within `timeout`.
pub(super) fn wait<S: Source>(source: &mut S, spin: Duration, timeout: Duration) -> Result<Option<S::Item>, WaitError> {
    let start = Instant::now();
    let deadline = start.checked_add(timeout);
    let spin = spin.min(timeout);
    while start.elapsed() < spin {
        if let Some(item) = source.poll()? {
            return Ok(Some(item));
        }
        std::hint::spin_loop();
    }
    loop {
        if let Some(item) = arm(source)? {
            return Ok(Some(item));
        }
        let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(None);
        }
        source.sleep(left)?;
    }
}

/// A poller as a [`Source`] to wait for.
struct Waiting<'p, B> {
    poller: &'p mut Poller<B>,
    wake_for: WakeFor,
}

impl<B> Source for Waiting<'_, B> {
    type Item = Completion<B>;

    fn poll(&mut self) -> Result<Option<Completion<B>>, WaitError> {
        Ok(self.poller.poll()?)
    }

    fn arm(&mut self) -> Result<(), WaitError> {
        Ok(self.poller.request_event(self.wake_for)?)
    }

    fn sleep(&mut self, left: Duration) -> Result<(), WaitError> {
        let deadline = Instant::now().checked_add(left);
        loop {
            let PollerParts { state, queue } = &*self.poller.parts;
            let left = deadline.map_or(left, |deadline| deadline.saturating_duration_since(Instant::now()));
            let nap = self.poller.next_timer().map_or(left, |next| next.min(left));
            until_readable([queue.channel.fd()?, queue.waker.fd()], nap)?;
            let is_over = left.is_zero() || self.wake_for == WakeFor::Any || state.has_departing();
            if is_over
                || until_readable([queue.waker.fd()], Duration::ZERO)?
                || queue.channel.take_events(Some(queue.id))? > 0
            {
                return Ok(());
            }
            // No event came: a signal or the end of `nap` ended the sleep. Do not return yet: the caller would poll,
            // and would find completions that are not solicited. Arm the queue again: a soft device runs its timers
            // only in calls of verbs, and arming is such a call.
            self.poller.request_event(self.wake_for)?;
        }
    }

    fn take_events(&mut self) -> Result<bool, WaitError> {
        self.poller.take_events()
    }
}

/// Waiting. Which method to use:
///
/// | method | use it |
/// |---|---|
/// | [`poll`](Self::poll) | to poll once without waiting, and to spin |
/// | [`poll_each`](Self::poll_each) | like `poll`, for all completions that there are now |
/// | [`poll_retired`](Self::poll_retired) | like `poll_each`, where most requests are unsignalled |
/// | [`wait`](Self::wait) | where a completion must come: none in time is an error |
/// | [`wait_for`](Self::wait_for) | in a loop that does something else from time to time: none in time is `None`; also to spin first, or to sleep until a solicited completion |
/// | [`arm`](Self::arm) | in an event loop of the program's own, with [`readiness`](Self::readiness) |
/// | [`CompletionChannel::wait_any`](super::CompletionChannel::wait_any) | for several pollers at once |
impl<B> Poller<B> {
    /// Waits for the next completion, for `timeout` at most.
    ///
    /// Arms the queue, polls again, then sleeps on the completion channel: `ibv_req_notify_cq(3)`,
    /// `ibv_get_cq_event(3)`.
    ///
    /// # Errors
    ///
    /// [`WaitError::TimedOut`] if no completion came in time; the other variants if the poll or the wait failed.
    pub fn wait(&mut self, timeout: Duration) -> Result<Completion<B>, WaitError> {
        self.wait_as(Wait::new(timeout))?.ok_or(WaitError::TimedOut(timeout))
    }

    /// As [`wait`](Self::wait), but gives `None` if no completion came in time. Takes a [`Duration`], or a [`Wait`] to
    /// spin before the sleep or to sleep until a solicited completion.
    ///
    /// # Errors
    ///
    /// [`WaitError`], but never `TimedOut`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # interlock::domain! { struct Docs; }
    /// # let mut poller: interlock::Poller<Docs> = todo!();
    /// # let stopped = || true;
    /// use std::time::Duration;
    /// while !stopped() {
    ///     if let Some(completion) = poller.wait_for(Duration::from_millis(100))? {
    ///         println!("{:?}", completion.check());
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn wait_for(&mut self, how: impl Into<Wait>) -> Result<Option<Completion<B>>, WaitError> {
        self.wait_as(how.into())
    }

    /// This function is not generic over `how`, so that it is compiled only once for each brand.
    fn wait_as(&mut self, Wait { timeout, spin, wake_for }: Wait) -> Result<Option<Completion<B>>, WaitError> {
        wait(&mut Waiting { poller: self, wake_for }, spin, timeout)
    }

    /// Arms the queue for an event loop of the program's own, which then waits until the [`Readiness`] is readable.
    ///
    /// Polls, takes the events that are waiting, arms (`ibv_req_notify_cq(3)`) and polls again. Each arming wakes once.
    /// So the loop is: arm and handle completions until [`Armed::Empty`], wait until readable, start over. No
    /// completion is missed if the program waits only after `Empty`. A future that waits in this way may be dropped at
    /// any time.
    ///
    /// # Errors
    ///
    /// [`WaitError`], but never `TimedOut`.
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
    /// # let (queue, mut poller) = domain.completion_queue(8)?;
    /// # let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
    /// # let myself = pair.endpoint();
    /// # let mut pair = pair.connect(&myself)?;
    /// use interlock::completion::{Armed, WakeFor};
    /// let readiness = poller.readiness()?; // for the event loop: see `Readiness`
    /// # pair.post_receive(domain.buffer(8)?)?;
    /// # pair.post_send(domain.buffer(8)?)?;
    /// # let mut left = 2;
    /// while left > 0 {
    ///     match poller.arm(WakeFor::Any)? {
    ///         Armed::Ready(completion) => {
    ///             completion.check()?;
    ///             left -= 1;
    ///         }
    ///         Armed::Empty => {
    ///             readiness.wait(Duration::from_secs(1))?; // or `readable` of `Readiness::watch`
    ///         }
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self, wake_for: WakeFor) -> Result<Armed<B>, WaitError> {
        let found = arm(&mut Waiting { poller: self, wake_for })?;
        Ok(found.map_or(Armed::Empty, Armed::Ready))
    }

    /// `ibv_req_notify_cq`.
    pub(super) fn request_event(&mut self, wake_for: WakeFor) -> Result<(), VerbError> {
        self.parts.state.end().arm(wake_for == WakeFor::Solicited)
    }

    /// Takes and acknowledges all events that are waiting, and says whether there were any. The [`Readiness`] is then
    /// not readable until the next event. [`arm`](Self::arm) does this too.
    ///
    /// An event means that a completion came after the queue was armed. So [`arm`](Self::arm) or [`poll`](Self::poll)
    /// until nothing is left before waiting again.
    ///
    /// # Errors
    ///
    /// The channel could not be read: `EIO` if the device is gone.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn take_events(&mut self) -> Result<bool, WaitError> {
        // `clear` loses no wake-up. If a wake-up came before `clear`, the polls that follow find its cause. If a
        // wake-up comes after `clear`, it makes the descriptor readable again.
        let queue = self.queue();
        queue.waker.clear();
        Ok(queue.channel.take_events(Some(queue.id))? > 0)
    }

    /// A descriptor for an event loop of the program's own. It is readable when [`arm`](Self::arm) may give a
    /// completion.
    ///
    /// It covers two descriptors: the completion channel, and one by which the library wakes a poller when no event
    /// comes, such as when another thread destroys a queue pair.
    ///
    /// # Errors
    ///
    /// No more descriptors (`EMFILE`, `ENFILE`).
    pub fn readiness(&self) -> Result<Readiness, VerbError> {
        Readiness::over(&self.queue().descriptors()?)
    }

    /// How long an event loop may wait before it must arm again, even if nothing is readable; `None`: for ever. Call
    /// this after each [`Armed::Empty`].
    ///
    /// There is a limit while dropped queue pairs wait to be destroyed, on devices that flush without an event, and on
    /// an automatic soft device, which runs its timers in calls of the program.
    pub fn next_timer(&self) -> Option<Duration> {
        self.queue().next_poll(self.parts.state.has_departing())
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
