//! The poller of a completion queue, its state, and how it finds the next completion.
//!
//! Three files below have what only few polls do. `mail` reads the messages of the control path about work queues; the
//! first poll after a pair was made has to read them. `gone` returns the requests of work queues that have gone.
//! `unmatched` handles completions that do not retire the oldest request of a work queue.
//!
//! ASSUMPTION: where the provider's row in `provider/reviewed.rs` says so, the sends of one work queue complete in the
//! order of posting.

mod gone;
mod mail;
mod unmatched;

use super::completion::{Completion, Ended};
use super::control::Control;
use super::departing::{Departure, Leftover};
use super::message::Orphan;
use super::out_of_order::OutOfOrder;
use super::queue::CqInner;
use super::retired::{Retired, Retirement};
use super::shared_receivers::SharedReceivers;
use super::statuses::Statuses;
use crate::device::CompletionQueueId;
use crate::domain::brand::Branded;
use crate::inflight::ledger::Retirers;
use crate::inflight::{Entry, Finish, FinishOnDrop, Pending, PollEnd, PollFailed, RawEntry, WorkId};
use crate::memory::Buffer;
use crate::sys;
pub(super) use gone::InFlight;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
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
    fn finish(mut self) {
        // The owner of the next poller perhaps never calls `take_leftover`, so from now on the state must keep nothing
        // for that call. Drop `kept` only after `park`: the drop can run code of the program. If that code calls
        // `take_poller`, it finds the state that was parked.
        let kept = self.state.stop_keeping();
        self.queue.park(self.state);
        drop(kept);
    }
}

impl<B> Poller<B> {
    pub(super) fn new(queue: Arc<CqInner>, state: Box<PollState>) -> Self {
        Self { parts: FinishOnDrop::new(PollerParts { state, queue }), brand: PhantomData }
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

    /// Stops polling for good: later polls fail, and the drop of the completion queue does not poll. What is still in
    /// flight on the queue is freed with it.
    #[cold]
    pub(crate) fn stop(&mut self) {
        let PollerParts { state, queue } = &mut *self.parts;
        state.fail(&queue.control);
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

    /// Whether requests of pairs that were dropped never come out: a pair was leaked, or all departing pairs have
    /// waited long for a request that perhaps never completes.
    #[cfg(feature = "aio")]
    pub(crate) fn may_keep_requests(&self) -> bool {
        self.parts.state.may_keep_requests()
    }

    /// Keeps what the poller has no more use for, until [`take_leftover`](Self::take_leftover).
    #[cfg(feature = "aio")]
    pub(crate) fn keep_leftovers(&mut self) {
        self.parts.state.keep_leftovers();
    }

    /// Whether something was kept.
    #[cfg(feature = "aio")]
    pub(crate) fn has_leftovers(&self) -> bool {
        self.parts.state.has_leftovers()
    }

    /// Something that was kept, to be dropped without a lock.
    #[cfg(feature = "aio")]
    pub(crate) fn take_leftover(&mut self) -> Option<Leftover> {
        self.parts.state.take_leftover()
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

/// Why nothing was polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// `ibv_poll_cq` failed. The completion queue can no longer be used. Memory that is in flight on it is freed when
    /// its queue pairs and the queue are dropped. A pair that was reset before it was drained cannot leave Reset.
    #[error(
        "the completion queue failed (overrun, or its device is gone): destroy its queue pairs (see \
         docs/failures.md#poll-failed)"
    )]
    Failed,
}

/// The state of a poller. It outlives a poller that is dropped.
pub(super) struct PollState {
    /// The work queues, by slot.
    retirers: Retirers<Entry>,
    /// The statuses of the pairs of the work queues. They are read only when a request fails.
    statuses: Statuses,
    /// The pairs that receive from a shared receive queue.
    receivers: SharedReceivers,
    /// The work queues that have completed in another order than they were posted in.
    out_of_order: OutOfOrder,
    /// Pairs to destroy once none of their requests is in flight.
    departing: Vec<Departure>,
    /// Whether a pair could not be destroyed. If so, the device may use for ever what the pair has in flight here.
    has_leaked: bool,
    end: PollEnd,
    /// Work queues that were gone before the device was last polled. Once the completions of that poll are consumed,
    /// each of these queues returns its remaining requests as destroyed.
    ready_orphans: Vec<Orphan>,
    /// Work queues that have gone since the device was last polled, the first to go in front. Each has a count: how
    /// many completions from before it went may still be in the completion queue. The device returns completions in
    /// order, so counting them is enough. The work queue need not wait until the completion queue is seen empty.
    waiting_orphans: Vec<(Orphan, u32)>,
    /// How many completions named no request in flight.
    unknown: u64,
    /// Whether the completion queue has failed, or may not be polled any more.
    pub(super) failed: bool,
    /// What the poller has no more use for, if it is [kept](Self::keep_leftovers).
    leftovers: Vec<Leftover>,
    keeps_leftovers: bool,
}

impl PollState {
    pub(super) fn new(end: PollEnd) -> Self {
        Self {
            retirers: Retirers::new(),
            statuses: Statuses::default(),
            receivers: SharedReceivers::default(),
            out_of_order: OutOfOrder::default(),
            departing: Vec::new(),
            has_leaked: false,
            end,
            ready_orphans: Vec::new(),
            waiting_orphans: Vec::new(),
            unknown: 0,
            failed: false,
            leftovers: Vec::new(),
            keeps_leftovers: false,
        }
    }

    /// As [`Poller::may_keep_requests`].
    #[cfg(feature = "aio")]
    pub(super) fn may_keep_requests(&self) -> bool {
        let is_hopeless = !self.departing.is_empty() && self.departing.iter().all(Departure::is_hopeless);
        self.has_leaked || is_hopeless
    }

    /// From now on, keeps each [`Leftover`] until somebody takes it, since its drop may run code of the program.
    #[cfg(feature = "aio")]
    pub(super) fn keep_leftovers(&mut self) {
        self.keeps_leftovers = true;
    }

    /// From now on, keeps no [`Leftover`]. Returns those that were kept.
    fn stop_keeping(&mut self) -> Vec<Leftover> {
        self.keeps_leftovers = false;
        mem::take(&mut self.leftovers)
    }

    /// Whether something was kept.
    #[cfg(feature = "aio")]
    pub(super) fn has_leftovers(&self) -> bool {
        !self.leftovers.is_empty()
    }

    /// Something that was kept.
    #[cfg(feature = "aio")]
    pub(super) fn take_leftover(&mut self) -> Option<Leftover> {
        self.leftovers.pop()
    }

    /// The polling end of the completion queue, which also arms and resizes it.
    pub(super) fn end(&mut self) -> &mut PollEnd {
        &mut self.end
    }

    /// Whether pairs wait here to be destroyed.
    pub(super) fn has_departing(&self) -> bool {
        !self.departing.is_empty()
    }

    /// How many completions named no request in flight.
    pub(super) fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Whether nothing is left to return without polling the device.
    #[inline(always)]
    pub(super) fn needs_poll(&self, control: &Control) -> bool {
        self.end.is_empty() && !control.mailbox.is_flagged()
    }

    #[cfg(feature = "aio")]
    #[inline(always)]
    pub(super) fn holds_completions(&self) -> bool {
        !self.end.is_empty()
    }

    /// The next completion to return; `None` if there is none now. Polls the device only if `may_poll`.
    #[inline(always)]
    pub(super) fn next<B>(&mut self, control: &Control, may_poll: bool) -> Result<Option<Completion<B>>, PollError> {
        if self.end.is_empty() {
            if !control.mailbox.is_flagged() {
                if !may_poll {
                    return Ok(None);
                }
                match self.end.take() {
                    Ok(Some(pending)) => {
                        if let Some(completion) = Self::oldest_of_success(&mut self.retirers, pending) {
                            return Ok(Some(completion));
                        }
                    }
                    Ok(None) => return Ok(None),
                    Err(PollFailed) => return Err(self.fail(control)),
                }
            }
        } else if let Some(pending) = self.end.pending()
            && let Some(completion) = Self::oldest_of_success(&mut self.retirers, pending)
        {
            return Ok(Some(completion));
        }
        // The slow path: there is mail (for example in the first poll after a pair was made), or the next completion is
        // not a success, is out of order, belongs to a shared receive, or names no request in flight. The slow path is
        // a separate function, so that a completion on the fast path above can stay in registers.
        let Some((ended, entry)) = self.next_of_any(control, may_poll)? else { return Ok(None) };
        Ok(Some(Completion::new(ended, entry)))
    }

    /// The oldest request that the pending completion retires, on the fast path: the completion is a success, and its
    /// work queue completes in order.
    #[inline(always)]
    fn oldest_of_success<B>(retirers: &mut Retirers<Entry>, pending: Pending<'_>) -> Option<Completion<B>> {
        let wc = pending.wc();
        let id = wc.wr_id;
        if wc.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
            pending.keep();
            return None;
        }
        let completed = pending.proof();
        let mut retirer = retirers.of(id);
        let (ended, entry) = if let Some(entry) = retirer.take_if_oldest(completed) {
            pending.consume();
            (Ended::succeeded(WorkId::from_raw(id), &entry, retirer.origin(), wc), entry)
        } else {
            pending.keep();
            if !retirer.origin().retires_prefixes() {
                return None;
            }
            let qpn = retirer.origin().qpn();
            let (oldest, entry) = retirer.prefix_to(completed)?.into_oldest();
            (Ended::implied(WorkId::from_raw(oldest), qpn), entry)
        };
        Some(Completion::new(ended, entry.into_raw()))
    }

    /// As [`next`](Self::next), for every kind of completion. The slow path.
    #[cold]
    #[inline(never)]
    fn next_of_any(&mut self, control: &Control, may_poll: bool) -> Result<Option<(Ended, RawEntry)>, PollError> {
        self.with_next(control, may_poll, |found| found.into_oldest())
    }

    /// Gives `f` the next requests to return; `None` if there are none now. Polls the device only if `may_poll`.
    ///
    /// (This takes a closure, because the borrow checker rejects a function that returns the borrowed requests: the
    /// loop uses `self` again after an attempt that found nothing.)
    #[inline(always)]
    pub(super) fn with_next<R>(
        &mut self,
        control: &Control,
        may_poll: bool,
        f: impl FnOnce(Retirement<'_>) -> R,
    ) -> Result<Option<R>, PollError> {
        let found = loop {
            if self.end.is_empty() {
                if control.mailbox.is_flagged() {
                    match self.poll_with_mail(control, may_poll)? {
                        Found::Polled => {}
                        Found::Destroyed(slot) => break self.destroyed(slot),
                        Found::Nothing => return Ok(None),
                    }
                } else if !may_poll || !self.poll_device(control)? {
                    return Ok(None);
                }
            }
            if let Some(current) = self.current() {
                break Some(current);
            }
            if self.move_to_single(control) {
                continue;
            }
            match self.move_to_pair() {
                Some(slot) => break self.current_of(slot),
                None => self.resolve_unmatched(control),
            }
        };
        Ok(found.map(f))
    }

    /// The requests that the next completion retires. `None` if the request that it names is not in flight. `None` also
    /// if that request is not the oldest, and its work queue completes requests one by one.
    #[inline(always)]
    fn current(&mut self) -> Option<Retirement<'_>> {
        let pending = self.end.pending()?;
        let requests = self.retirers.of(pending.wc().wr_id).prefix_to(pending.proof())?;
        if requests.count_before_last() != 0 && !requests.origin().retires_prefixes() {
            return None;
        }
        Some(Retirement::completed(requests, &self.statuses, pending))
    }

    /// Polls the device. False if it has no completions.
    #[inline(always)]
    fn poll_device(&mut self, control: &Control) -> Result<bool, PollError> {
        match self.end.take() {
            Ok(Some(first)) => {
                first.keep();
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(PollFailed) => Err(self.fail(control)),
        }
    }

    /// Marks the completion queue as failed: nobody polls the device again, and every later poll fails in the same way.
    #[cold]
    pub(super) fn fail(&mut self, control: &Control) -> PollError {
        self.failed = true;
        control.mailbox.flag();
        self.end.clear();
        PollError::Failed
    }
}

/// The result of [`PollState::poll_with_mail`].
enum Found {
    /// The device had completions.
    Polled,
    /// The pair of the work queue in this slot is gone, and the work queue still has requests.
    Destroyed(usize),
    Nothing,
}
