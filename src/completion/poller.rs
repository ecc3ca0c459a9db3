//! The poller of a completion queue.
#![allow(unsafe_code, reason = "arms the raw queue")]

use super::desk::Desk;
use super::queue::CqInner;
use super::retired::Retired;
use super::{Completion, WakeFor};
use crate::device::CompletionQueueId;
use crate::domain::brand::Branded;
use crate::error::VerbError;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// Polls one completion queue of domain `B`. There is one, so `&mut` means that nobody else polls.
///
/// It may go to another thread. Dropping it loses nothing: [`CompletionQueue::take_poller`](super::CompletionQueue::take_poller)
/// gives the next one, and memory that nobody polls for is freed with the queue.
#[doc(alias = "ibv_poll_cq")]
pub struct Poller<B> {
    /// Taken out only when this is dropped.
    pub(super) desk: ManuallyDrop<Box<Desk>>,
    pub(super) queue: Arc<CqInner>,
    brand: Branded<B>,
}

/// Why nothing was polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// `ibv_poll_cq` failed, which is neither an empty queue nor a completion. The queue is of no use any more: what
    /// is in flight on it is freed when the queue pairs and the queue are dropped, and a pair that was reset undrained
    /// cannot leave Reset.
    #[error("the completion queue failed (overrun, or its device is gone): destroy its queue pairs")]
    Failed,
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

impl<B> Poller<B> {
    pub(super) fn new(queue: Arc<CqInner>, desk: Box<Desk>) -> Self {
        Self { desk: ManuallyDrop::new(desk), queue, brand: PhantomData }
    }

    /// The next completion; `None` if there is none now.
    ///
    /// `ibv_poll_cq(3)`, which takes up to 16 at once. Each posted request comes out exactly once: with the status that the
    /// device reported; as a success where it was unsignalled and a later one completed; or, after its queue pair was
    /// destroyed or reset, as a [`Failure`](super::Failure) with [`Status::Destroyed`](crate::Status::Destroyed).
    ///
    /// # Errors
    ///
    /// [`PollError::Failed`], from then on always.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion<B>>, PollError> {
        self.desk.next(&self.queue, true)
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
        while let Some(completion) = self.desk.next(&self.queue, count == 0)? {
            count += 1;
            f(completion);
            if self.desk.is_out(&self.queue) {
                break;
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
            if self.desk.is_out(&self.queue) {
                break;
            }
        }
        Ok(count)
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

    /// The name of its completion queue, as [`CompletionQueue::id`](super::CompletionQueue::id) gives it.
    pub fn id(&self) -> CompletionQueueId {
        self.queue.id
    }

    /// `ibv_req_notify_cq`.
    pub(super) fn request_event(&self, wake_for: WakeFor) -> Result<(), VerbError> {
        let solicited_only = i32::from(wake_for == WakeFor::Solicited);
        // SAFETY: alive as long as we hold it; we are its only poller.
        match unsafe { (self.queue.request_notify)(self.queue.raw.as_ptr(), solicited_only) } {
            0 => Ok(()),
            errno => Err(VerbError::new("ibv_req_notify_cq", errno.wrapping_abs())),
        }
    }
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
