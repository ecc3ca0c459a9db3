//! The poller of a completion queue.
#![allow(unsafe_code, reason = "arms the raw queue")]

use super::Completion;
use super::desk::Desk;
use super::queue::CqInner;
use super::retired::Retired;
use crate::domain::brand::Branded;
use crate::error::VerbError;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Polls one completion queue of domain `B`. There is one, so `&mut` means that nobody else polls.
///
/// It may go to another thread. Dropping it loses nothing: [`CompletionQueue::take_poller`](super::CompletionQueue::take_poller)
/// gives the next one, and memory that nobody polls for is freed with the queue.
#[doc(alias = "ibv_poll_cq")]
pub struct Poller<B> {
    /// Taken out only when this is dropped.
    desk: ManuallyDrop<Box<Desk>>,
    queue: Arc<CqInner>,
    brand: Branded<B>,
}

/// Why nothing was polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// `ibv_poll_cq` failed, which is neither an empty queue nor a completion. The queue is of no use any more: what
    /// is in flight on it is freed when the queue pairs and the queue are dropped, and a pair that was reset undrained
    /// does not come up again.
    #[error("the completion queue failed (overrun, or its device is gone): destroy its queue pairs")]
    Failed,
}

/// Why there is no completion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// None came in time.
    #[error("no completion within {0:?}")]
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
}

impl<B> Poller<B> {
    pub(super) fn new(queue: Arc<CqInner>, desk: Box<Desk>) -> Self {
        Self { desk: ManuallyDrop::new(desk), queue, brand: PhantomData }
    }

    /// The next completion; `None` if there is none now.
    ///
    /// `ibv_poll_cq(3)`, which takes up to 16 at once. Each posted request comes out exactly once: with the status that the
    /// device reported; as a success where it was unsignalled and a later one completed; or, after its queue pair was
    /// destroyed or reset, as a [`Failure`](super::Failure) with [`Status::Destroyed`](super::Status::Destroyed).
    ///
    /// # Errors
    ///
    /// [`PollError::Failed`], from then on always.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion<B>>, PollError> {
        Ok(self.desk.next_run(&self.queue, true)?.map(|run| run.next().0))
    }

    /// Gives `f` each completion that there is now; says how many. Cheaper than as many [`poll`](Self::poll)s.
    ///
    /// Looks at the device only if nothing is left of an earlier look. What is left when `f` panics comes next time.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    #[inline(always)]
    pub fn poll_each(&mut self, mut f: impl FnMut(Completion<B>)) -> Result<usize, PollError> {
        let mut count = 0;
        while let Some(mut run) = self.desk.next_run(&self.queue, count == 0)? {
            loop {
                let (completion, others) = run.next();
                count += 1;
                f(completion);
                match others {
                    Some(others) => run = others,
                    None => break,
                }
            }
        }
        Ok(count)
    }

    /// Gives `f` what there is now by what completed it: each completion of the device, with the unsignalled requests that
    /// it retires; says how many requests that were. The fastest way where most requests are unsignalled.
    ///
    /// Looks at the device only if nothing is left of an earlier look. What is left when `f` panics comes next time.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    ///
    /// # Examples
    ///
    /// Collects the buffers of batches:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # interlock::domain! { struct Docs; }
    /// # let (mut poller, mut free): (interlock::Poller<Docs>, Vec<interlock::Buffer<Docs>>) = todo!();
    /// poller.poll_retired(|mut retired| {
    ///     retired.unsignalled().for_each(|success| free.extend(success.into_buffer()));
    ///     match retired.completion().check() {
    ///         Ok(success) => free.extend(success.into_buffer()),
    ///         Err(failure) => eprintln!("{failure}"),
    ///     }
    /// })?;
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn poll_retired(&mut self, mut f: impl FnMut(Retired<'_, B>)) -> Result<usize, PollError> {
        let mut count = 0;
        while let Some(run) = self.desk.next_run(&self.queue, count == 0)? {
            let retired = Retired::new(run);
            count += retired.len();
            f(retired);
        }
        Ok(count)
    }

    /// Waits for the next completion, at most for `timeout`.
    ///
    /// Arms the queue, looks again, then sleeps on the completion channel: `ibv_req_notify_cq(3)`,
    /// `ibv_get_cq_event(3)`. To spin instead, call [`poll`](Self::poll).
    ///
    /// # Errors
    ///
    /// [`WaitError`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Completion<B>, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(completion);
            }
            self.arm()?;
            // What came before the queue was armed raises no event.
            if let Some(completion) = self.poll()? {
                return Ok(completion);
            }
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(WaitError::TimedOut(timeout));
            }
            self.sleep(left)?;
        }
    }

    /// Completions that named no request in flight, and were dropped. Not 0 means that the provider is at fault, or that
    /// another program wrote to this one's memory.
    pub fn unknown_completions(&self) -> u64 {
        self.desk.unknown()
    }

    /// The queue that it polls.
    pub(crate) fn queue(&self) -> &Arc<CqInner> {
        &self.queue
    }

    fn arm(&self) -> Result<(), VerbError> {
        // SAFETY: alive as long as we hold it; we are its only poller.
        match unsafe { (self.queue.request_notify)(self.queue.raw.as_ptr(), 0) } {
            0 => Ok(()),
            errno => Err(VerbError::new("ibv_req_notify_cq", errno.wrapping_abs())),
        }
    }

    /// Sleeps until an event, or a timer of the device, or for `left`; takes what events there are.
    fn sleep(&self, left: Duration) -> Result<(), WaitError> {
        let left = self.queue.domain.context.next_timer().map_or(left, |timer| timer.min(left));
        // SAFETY: alive as long as the queue.
        let channel = unsafe { (*self.queue.channel.as_ptr()).fd };
        wait_readable([channel, self.queue.waker.fd()], left)?;
        self.queue.waker.clear();
        // SAFETY: alive as long as the queue.
        while unsafe { self.queue.domain.context.provider.take_cq_event(self.queue.channel) }? {}
        Ok(())
    }
}

/// Sleeps until one of `fds` can be read, or for `left`, or until a signal.
#[cfg(not(miri))]
fn wait_readable(fds: [i32; 2], left: Duration) -> io::Result<()> {
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // Rounded up, so as not to spin through the last millisecond.
    let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: two entries, which may be written.
    if unsafe { libc::poll(polls.as_mut_ptr(), 2, millis) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// Miri has no `poll(2)`; to come back early is allowed.
#[cfg(miri)]
fn wait_readable(_: [i32; 2], _: Duration) -> io::Result<()> {
    std::thread::yield_now();
    Ok(())
}

impl<B> Drop for Poller<B> {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        self.queue.park(unsafe { ManuallyDrop::take(&mut self.desk) });
    }
}

impl<B> fmt::Debug for Poller<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("unknown_completions", &self.unknown_completions()).finish_non_exhaustive()
    }
}
