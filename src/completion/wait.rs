//! Waiting for a completion without ever sleeping through one.
//!
//! An armed queue raises one event, for the first completion *after* it was armed; what was there already raises none. So the
//! order is: look, take the events of before, arm, look again, and only then sleep; then begin anew. All that waits in this
//! library goes through [`arm`] and [`wait`] here. They know nothing of devices, so that models can try every order in which a
//! device may complete, and the tests every place.

use super::completion::Completion;
use super::poll_state::PollError;
use super::poller::{Poller, PollerParts};
use crate::error::VerbError;
use crate::readiness::{Readiness, until_readable};
use std::io;
use std::time::{Duration, Instant};

/// Which completions wake a sleeper.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WakeFor {
    /// Each.
    #[default]
    Any,
    /// Receives of messages that were [sent solicited](crate::WorkRequest::solicited), and failures.
    ///
    /// For a side that has to act on few of many messages. A sleeper may be woken by others as well: one that had waited for any
    /// before, or one that looked in between. Linux soft-RoCE wakes for solicited receives alone, and for no failure: put a limit
    /// on the time.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    Solicited,
}

/// How to wait: for [`Poller::wait_with`].
///
/// # Examples
///
/// ```
/// use interlock::{Wait, WakeFor};
/// use std::time::Duration;
///
/// // Spins for 20 µs, which is less than going to sleep and waking up takes.
/// let spinning = Wait { spin: Duration::from_micros(20), ..Wait::new(Duration::from_secs(1)) };
/// let urgent = Wait { wake_for: WakeFor::Solicited, ..Wait::new(Duration::from_secs(1)) };
/// assert_eq!(spinning.wake_for, WakeFor::Any);
/// # _ = urgent;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wait {
    /// The limit, spinning included.
    pub timeout: Duration,
    /// For how long to poll before going to sleep. 0 by default.
    pub spin: Duration,
    /// What ends the sleep. Whatever is there when it ends is given, solicited or not.
    pub wake_for: WakeFor,
}

impl Wait {
    /// At most for `timeout`, without spinning, for any completion.
    pub const fn new(timeout: Duration) -> Self {
        Self { timeout, spin: Duration::ZERO, wake_for: WakeFor::Any }
    }
}

/// Why there is no completion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// None came in time.
    #[error(
        "no completion within {0:?} (is anything in flight? A send waits for a receive of the peer, by default for ever; what \
         is unsignalled completes with a later request)"
    )]
    TimedOut(Duration),
    /// See [`PollError`].
    #[error(transparent)]
    Poll(#[from] PollError),
    /// Arming the queue or reading its channel failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Waiting for the channel failed.
    #[error("cannot wait for the completion channel")]
    Io(#[from] io::Error),
    /// A poller of another channel was to be waited for: this one would not hear of its completions.
    #[error("poller {index} is of another completion channel: make its queue from this one")]
    OtherChannel {
        /// Where it is among the pollers, from 0.
        index: usize,
    },
}

/// What came of arming a poller.
#[must_use = "it may hold a completion, for which no event comes"]
#[derive(Debug)]
pub enum Armed<B> {
    /// There is a completion already; perhaps it is one that came before the queue was armed, and so raises no event. Do not
    /// wait: go on polling, or arm again.
    Ready(Completion<B>),
    /// The queue is armed and was seen empty after that: what comes from now on makes the [`Readiness`] readable.
    Empty,
}

/// What can be waited for.
pub(super) trait Source {
    type Item;
    /// What there is now.
    fn look(&mut self) -> Result<Option<Self::Item>, PollError>;
    /// Asks for an event.
    fn arm(&mut self) -> Result<(), VerbError>;
    /// Sleeps until there is an event, or for `left`, or less.
    fn sleep(&mut self, left: Duration) -> Result<(), WaitError>;
    /// Takes all events that there are; whether there were any.
    fn take_events(&mut self) -> Result<bool, WaitError>;
}

/// Arms; `None` if there is nothing and the next thing that comes raises an event.
pub(super) fn arm<S: Source>(source: &mut S) -> Result<Option<S::Item>, WaitError> {
    if let Some(item) = source.look()? {
        return Ok(Some(item));
    }
    // Of earlier armings. Here, so that at most one is left by each; and before the last look, which sees what they told.
    source.take_events()?;
    source.arm()?;
    // What came before the arming raises no event.
    Ok(source.look()?)
}

/// The first thing that there is or comes within `timeout`.
pub(super) fn wait<S: Source>(source: &mut S, spin: Duration, timeout: Duration) -> Result<Option<S::Item>, WaitError> {
    let start = Instant::now();
    let deadline = start.checked_add(timeout);
    let spin = spin.min(timeout);
    while start.elapsed() < spin {
        if let Some(item) = source.look()? {
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

/// A poller that waits.
struct Waiting<'p, B> {
    poller: &'p mut Poller<B>,
    wake_for: WakeFor,
}

impl<B> Source for Waiting<'_, B> {
    type Item = Completion<B>;

    fn look(&mut self) -> Result<Option<Completion<B>>, PollError> {
        self.poller.poll()
    }

    fn arm(&mut self) -> Result<(), VerbError> {
        self.poller.request_event(self.wake_for)
    }

    fn sleep(&mut self, left: Duration) -> Result<(), WaitError> {
        let deadline = Instant::now().checked_add(left);
        loop {
            let PollerParts { state, queue } = &*self.poller.parts;
            let left = deadline.map_or(left, |deadline| deadline.saturating_duration_since(Instant::now()));
            let nap = self.poller.next_timer().map_or(left, |next| next.min(left));
            until_readable([queue.channel.fd(), queue.waker.fd()], nap)?;
            let is_over = left.is_zero() || self.wake_for == WakeFor::Any || state.has_departing();
            if is_over
                || until_readable([queue.waker.fd()], Duration::ZERO)?
                || queue.channel.take_events(Some(queue.id))? > 0
            {
                return Ok(());
            }
            // A signal, or a timer of a soft device, which is new or goes off in this call. A look would find what nobody waits
            // for; what is waited for raises an event, since the queue is armed.
            self.poller.request_event(self.wake_for)?;
        }
    }

    fn take_events(&mut self) -> Result<bool, WaitError> {
        self.poller.take_events()
    }
}

/// Waiting. There are three ways: [`wait`](Self::wait) where a completion must come, [`wait_for`](Self::wait_for) in loops, and
/// [`arm`](Self::arm) for an event loop of the program's own.
impl<B> Poller<B> {
    /// Waits for the next completion, at most for `timeout`, after which there should be one.
    ///
    /// Arms the queue, looks again, then sleeps on the completion channel: `ibv_req_notify_cq(3)`,
    /// `ibv_get_cq_event(3)`. To spin instead, call [`poll`](Self::poll).
    ///
    /// # Errors
    ///
    /// [`WaitError::TimedOut`] where none came, and the others.
    pub fn wait(&mut self, timeout: Duration) -> Result<Completion<B>, WaitError> {
        self.wait_for(timeout)?.ok_or(WaitError::TimedOut(timeout))
    }

    /// As [`wait`](Self::wait), where it is no error that none comes: `None` then.
    ///
    /// # Errors
    ///
    /// [`WaitError`], but for `TimedOut`.
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
    pub fn wait_for(&mut self, timeout: Duration) -> Result<Option<Completion<B>>, WaitError> {
        self.wait_with(&Wait::new(timeout))
    }

    /// As [`wait_for`](Self::wait_for), with more to choose: spinning first, or sleeping until a solicited completion.
    ///
    /// # Errors
    ///
    /// As [`wait_for`](Self::wait_for).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn wait_with(&mut self, how: &Wait) -> Result<Option<Completion<B>>, WaitError> {
        let &Wait { timeout, spin, wake_for } = how;
        wait(&mut Waiting { poller: self, wake_for }, spin, timeout)
    }

    /// Arms the queue for an event loop of the program's own, which then waits until the [`Readiness`] is readable.
    ///
    /// Looks, takes the events that are there, arms (`ibv_req_notify_cq(3)`) and looks again. Each arming wakes once, so the loop
    /// is: arm until it says [`Armed::Empty`], handling what it gives; wait until readable; again. Nothing is lost in any order of
    /// these steps, so long as the program sleeps only after `Empty`. A future that waits may be dropped at any time.
    ///
    /// # Errors
    ///
    /// [`WaitError`], but for `TimedOut`.
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
    /// use interlock::{Armed, WakeFor};
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
    ///             readiness.wait(Duration::from_secs(1))?; // or `readiness.readable().await?.clear_ready()`
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

    /// Takes and acknowledges all events that are there, so that the [`Readiness`] is not readable until the next; whether there
    /// were any. [`arm`](Self::arm) does so too.
    ///
    /// An event says that there was a completion after the queue was armed. So [`arm`](Self::arm) or [`poll`](Self::poll) until
    /// nothing is left before waiting again.
    ///
    /// # Errors
    ///
    /// The channel could not be read: `EIO` where the device is gone.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn take_events(&mut self) -> Result<bool, WaitError> {
        // First, so that a waker that comes now stays for the next time.
        let queue = self.queue();
        queue.waker.clear();
        Ok(queue.channel.take_events(Some(queue.id))? > 0)
    }

    /// For an event loop of the program's own: readable when [`arm`](Self::arm) may have something.
    ///
    /// One descriptor over two: that of the completion channel, and one by which the library wakes a poller where no completion
    /// comes, as when a queue pair is destroyed on another thread.
    ///
    /// # Errors
    ///
    /// No more descriptors (`EMFILE`, `ENFILE`).
    pub fn readiness(&self) -> Result<Readiness, VerbError> {
        Readiness::over(&[self.queue().channel.fd(), self.queue().waker.fd()])
    }

    /// How long an event loop may wait before it arms again although nothing is readable; `None` is for ever. Ask after each
    /// [`Armed::Empty`].
    ///
    /// There is a limit while queue pairs are on their way out, on devices that flush without telling, and on an automatic soft
    /// device, whose timers go off in calls of the program.
    pub fn next_timer(&self) -> Option<Duration> {
        self.queue().next_look(self.parts.state.has_departing())
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
