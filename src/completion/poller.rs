//! The poller of a completion queue.

use super::completion::Completion;
use super::event_channel::EventChannel;
use super::options::{CompletionQueueError, CompletionQueueOptions};
use super::poll_state::{PollError, PollState};
use super::queue::{CompletionQueue, CqInner};
use super::retired::Retired;
use crate::device::CompletionQueueId;
use crate::domain::brand::Branded;
use crate::domain::{Brand, ProtectionDomain};
#[cfg(feature = "aio")]
use crate::inflight::SharedLedger;
use crate::inflight::{Finish, FinishOnDrop, WorkId};
use crate::memory::Buffer;
use crate::verb_error::VerbError;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Polls one completion queue of domain `B`. Each queue has one poller, so `&mut` means that nobody else polls.
///
/// It may be sent to another thread. Dropping it loses nothing:
/// [`CompletionQueue::take_poller`](super::CompletionQueue::take_poller) gives another one, and memory in flight that
/// nobody polls for is freed with the queue.
#[doc(alias = "ibv_poll_cq")]
pub struct Poller<B> {
    pub(super) parts: FinishOnDrop<PollerParts>,
    brand: Branded<B>,
}

/// The parts of a poller. When the poller is dropped, the queue keeps the state.
pub(super) struct PollerParts {
    pub(super) state: Box<PollState>,
    pub(super) queue: Arc<CqInner>,
}

impl Finish for PollerParts {
    fn finish(self) {
        self.queue.park(self.state);
    }
}

/// How a domain makes completion queues.
impl<B: Brand> ProtectionDomain<B> {
    /// A completion queue for `entries` completions, and its one poller.
    ///
    /// `ibv_create_cq(3)`. Each queue pair leases room for the full depth of its work queues
    /// ([`Limits::completions`](crate::Limits::completions)), so the queue never overflows.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no entries, or more than the device has
    /// ([`max_completion_entries`](crate::device::DeviceAttributes::max_completion_entries)).
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(&self, entries: u32) -> Result<(CompletionQueue<B>, Poller<B>), VerbError> {
        self.completion_queue_with(entries, &CompletionQueueOptions::default()).map_err(CompletionQueueError::into_verb)
    }

    /// As [`completion_queue`](Self::completion_queue), with options: the completion vector and the polling interface.
    ///
    /// `ibv_create_cq(3)`, or `ibv_create_cq_ex(3)` with [`Polling::Extended`](crate::completion::Polling::Extended).
    ///
    /// # Errors
    ///
    /// As [`completion_queue`](Self::completion_queue); `EINVAL` also if the device has no such vector.
    /// [`CompletionQueueError::NotExtended`]: the device has no extended completion queues.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn completion_queue_with(
        &self,
        entries: u32,
        options: &CompletionQueueOptions,
    ) -> Result<(CompletionQueue<B>, Poller<B>), CompletionQueueError> {
        Poller::create(&EventChannel::of_one_queue(&self.inner)?, entries, options)
    }
}

impl<B> CompletionQueue<B> {
    /// Another poller, if the last one has been dropped.
    pub fn take_poller(&self) -> Option<Poller<B>> {
        Some(Poller::new(Arc::clone(&self.inner), self.inner.unpark()?))
    }
}

impl<B> Poller<B> {
    fn new(queue: Arc<CqInner>, state: Box<PollState>) -> Self {
        Self { parts: FinishOnDrop::new(PollerParts { state, queue }), brand: PhantomData }
    }

    /// A completion queue on this channel, with its poller.
    pub(super) fn create(
        channel: &Arc<EventChannel>,
        entries: u32,
        options: &CompletionQueueOptions,
    ) -> Result<(CompletionQueue<B>, Self), CompletionQueueError> {
        let (queue, state) = CqInner::create(channel, entries, options)?;
        Ok((CompletionQueue { inner: Arc::clone(&queue), brand: PhantomData }, Self::new(queue, state)))
    }

    /// The next completion; `None` if there is none now.
    ///
    /// `ibv_poll_cq(3)`, which takes up to 16 completions at once. Each posted request comes out exactly once. Its
    /// status is the device's; an unsignalled request counts as a success when a later one succeeded; and if the queue
    /// pair was destroyed or reset, the request is a [`Failure`](super::Failure) with
    /// [`Status::Destroyed`](crate::Status::Destroyed).
    ///
    /// # Errors
    ///
    /// [`PollError::Failed`]; every later poll fails in the same way.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion<B>>, PollError> {
        let PollerParts { state, queue } = &mut *self.parts;
        state.next(&queue.control, true)
    }

    /// Gives `f` each completion that there is now, and returns how many. Cheaper than calling [`poll`](Self::poll) for
    /// each.
    ///
    /// Polls the device only if nothing is left of an earlier poll. If `f` panics, the remaining completions come next
    /// time.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    #[inline(always)]
    pub fn poll_each(&mut self, mut f: impl FnMut(Completion<B>)) -> Result<usize, PollError> {
        let PollerParts { state, queue } = &mut *self.parts;
        let mut count = 0;
        while let Some(completion) = state.next(&queue.control, count == 0)? {
            count += 1;
            f(completion);
            if state.needs_poll(&queue.control) {
                break;
            }
        }
        Ok(count)
    }

    /// Gives `f` each completion of the device that there is now, together with the unsignalled requests that it
    /// retires. Returns how many requests there were. This is the fastest way if most requests are unsignalled.
    ///
    /// Polls the device only if nothing is left of an earlier poll. If `f` panics, the remaining completions come next
    /// time.
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
    ///     match retired.into_completion().check() {
    ///         Ok(success) => free.extend(success.into_buffer()),
    ///         Err(failure) => eprintln!("{failure}"),
    ///     }
    /// })?;
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn poll_retired(&mut self, mut f: impl FnMut(Retired<'_, B>)) -> Result<usize, PollError> {
        let PollerParts { state, queue } = &mut *self.parts;
        let mut count = 0;
        while let Some(len) = state.with_next(&queue.control, count == 0, |found| {
            let retired = Retired::new(found);
            let len = retired.len();
            f(retired);
            len
        })? {
            count += len;
            if state.needs_poll(&queue.control) {
                break;
            }
        }
        Ok(count)
    }

    /// Polls for a batch: puts the buffers of the requests from `first` on into `free`, if the next completion retires
    /// them, all have succeeded, and there are at most `most`. Returns how many that are. Requests that are not taken
    /// stay in the ledger.
    #[inline(always)]
    pub(crate) fn poll_batch(&mut self, first: WorkId, most: u32, free: &mut Vec<Buffer<B>>) -> u32 {
        let before = free.len();
        let PollerParts { state, queue } = &mut *self.parts;
        // An error is ignored here: if this poll fails, the next poll fails too, and reports it.
        let _ = state.with_next(&queue.control, true, |found| found.take_batch(first, most, free));
        (free.len() - before) as u32
    }

    /// Whether a poll may give something without asking the device: completions that an earlier poll has taken from the
    /// device, or news of the control path.
    #[inline(always)]
    pub(crate) fn has_taken(&self) -> bool {
        !self.parts.state.needs_poll(&self.parts.queue.control)
    }

    /// Whether there is news of the control path: a poll may give requests of pairs that are gone.
    #[cfg(feature = "aio")]
    #[inline(always)]
    pub(crate) fn has_mail(&self) -> bool {
        self.parts.queue.control.mailbox.is_flagged()
    }

    /// Whether an earlier poll has taken completions from the device that no poll has returned yet.
    #[cfg(feature = "aio")]
    #[inline(always)]
    pub(crate) fn holds_completions(&self) -> bool {
        self.parts.state.holds_completions()
    }

    /// Whether a pair of the completion queue was leaked: its requests never come out.
    #[cfg(feature = "aio")]
    pub(crate) fn has_leaked(&self) -> bool {
        self.parts.state.has_leaked()
    }

    /// Keeps shared receive queues that are gone, until [`take_gone`](Self::take_gone).
    #[cfg(feature = "aio")]
    pub(crate) fn keep_gone(&mut self) {
        self.parts.state.keep_gone();
    }

    /// A shared receive queue that was kept, to be dropped without a lock.
    #[cfg(feature = "aio")]
    pub(crate) fn take_gone(&mut self) -> Option<SharedLedger> {
        self.parts.state.take_gone()
    }

    /// How many completions named no request in flight, and were dropped. If this is not 0, the provider is wrong, or
    /// another program wrote to the memory of this one.
    pub fn unknown_completions(&self) -> u64 {
        self.parts.state.unknown()
    }

    pub(crate) fn queue(&self) -> &Arc<CqInner> {
        &self.parts.queue
    }

    /// The id of the poller's completion queue, as [`CompletionQueue::id`](super::CompletionQueue::id) returns it.
    pub fn id(&self) -> CompletionQueueId {
        self.parts.queue.id
    }
}

impl<B> fmt::Debug for Poller<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("unknown_completions", &self.unknown_completions()).finish_non_exhaustive()
    }
}
