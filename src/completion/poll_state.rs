//! The state of a poller: the work queues of one completion queue, and the completions that were taken from the device
//! but not returned yet.
//!
//! ASSUMPTION: where the provider's row in `provider/reviewed.rs` says so, the sends of one work queue complete in the
//! order of posting.

use super::completion::{Completion, Ended};
use super::control::Control;
use super::departing::DepartingPair;
use super::message::{Attached, Message, Orphan, Place};
use super::out_of_order::OutOfOrder;
use super::retired::Retirement;
use super::shared_receivers::SharedReceivers;
use super::statuses::Statuses;
use crate::inflight::ledger::{Retirer, Retirers};
use crate::inflight::{Entry, Pending, PollEnd, PollFailed, RawEntry, SharedLedger, Status, WorkId};
use crate::sys;
use std::mem;
use std::sync::atomic::Ordering;

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
pub(crate) struct PollState {
    /// The work queues, by slot.
    retirers: Retirers<Entry>,
    /// The statuses of the pairs of the work queues. They are read only when a request fails.
    statuses: Statuses,
    /// The pairs that receive from a shared receive queue.
    receivers: SharedReceivers,
    /// The work queues that have completed in another order than they were posted in.
    out_of_order: OutOfOrder,
    /// Pairs to destroy once none of their requests is in flight.
    departing: Vec<DepartingPair>,
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
    /// Whether the completion queue has failed.
    failed: bool,
    /// Shared receive queues of pairs that are gone, if they are [kept](Self::keep_gone).
    gone: Vec<SharedLedger>,
    keeps_gone: bool,
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
            gone: Vec::new(),
            keeps_gone: false,
        }
    }

    /// Whether a pair was leaked: its requests never come out.
    #[cfg(feature = "aio")]
    pub(super) fn has_leaked(&self) -> bool {
        self.has_leaked
    }

    /// From now on, keeps the shared receive queues of pairs that are gone. Dropping the last handle of such a queue
    /// drops memory of the program, and so runs code of the program. A caller that polls under a lock must not do that.
    #[cfg(feature = "aio")]
    pub(super) fn keep_gone(&mut self) {
        self.keeps_gone = true;
    }

    /// The next shared receive queue that was kept.
    #[cfg(feature = "aio")]
    pub(super) fn take_gone(&mut self) -> Option<SharedLedger> {
        self.gone.pop()
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
        // The slow path is a function of its own, so that a completion of the fast path above can stay in registers.
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

    /// If the next completion names a request that completed out of order, moves that request to the ledger where it is
    /// the oldest.
    #[cold]
    #[inline(never)]
    fn move_to_single(&mut self, control: &Control) -> bool {
        let Some(wc) = self.end.peek() else { return false };
        let id = WorkId::from_raw(wc.wr_id);
        let slot = id.key().slot();
        if let Some(place) = self.retirers.get_mut(slot)
            && place.lend().has(id.raw())
            && !self.out_of_order.has(slot)
            && let Some(posted) = self.retirers.vacate(slot)
        {
            let single = self.out_of_order.begin(slot, posted, &control.ledgers);
            self.retirers.put(slot, single);
        }
        if !self.out_of_order.can_move(id) {
            return false;
        }
        // The failure is recorded before the move takes the request out of the ledger. After the move the program can
        // see that the pair is drained, and can reset it. A failure recorded later would count against the pair after
        // the reset.
        let status = Status::from_raw(wc.status.0);
        if status != Status::Success {
            self.statuses.note_early(id, status);
        }
        self.retirers.get_mut(slot).is_some_and(|place| self.out_of_order.move_to_single(id, place))
    }

    /// If the next completion belongs to a shared receive, moves its request to the pair that took it, and returns the
    /// slot of that pair.
    #[cold]
    #[inline(never)]
    fn move_to_pair(&mut self) -> Option<usize> {
        self.receivers.move_to_pair(&self.end.peek()?)
    }

    /// The shared receive that was moved to the pair in this slot. The next completion belongs to it.
    #[cold]
    fn current_of(&mut self, slot: usize) -> Option<Retirement<'_>> {
        let pending = self.end.pending()?;
        let moved = self.retirers.get_mut(slot)?.lend().oldest_moved(pending.proof())?;
        Some(Retirement::completed(moved, &self.statuses, pending))
    }

    /// The oldest request of a work queue that is gone: the last of `ready_orphans`, in this slot.
    #[cold]
    fn destroyed(&mut self, slot: usize) -> Option<Retirement<'_>> {
        let Orphan { quiescent, .. } = self.ready_orphans.last()?;
        let oldest = self.retirers.get_mut(slot)?.lend().oldest_of(quiescent)?;
        Some(Retirement::destroyed(oldest, &self.statuses))
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

    /// Polls the device, and also reads the mail of the control path and empties the work queues that are gone.
    #[cold]
    #[inline(never)]
    fn poll_with_mail(&mut self, control: &Control, may_poll: bool) -> Result<Found, PollError> {
        if self.failed {
            return Err(PollError::Failed);
        }
        if let Some(slot) = self.next_destroyed(control) {
            return Ok(Found::Destroyed(slot));
        }
        if !may_poll {
            return Ok(Found::Nothing);
        }
        // The mail is read before the poll: if the poll then finds the queue empty, the queue holds no completion of a
        // work queue that the mail reported as gone.
        self.read_mail(control);
        let any = self.poll_device(control)?;
        // Each waiting orphan has a count: how many completions that are older than the orphan may still be in the
        // completion queue. One poll perhaps does not return all of them. So a poll with completions lowers each count
        // by their number, and an empty poll sets all counts to 0.
        let seen = if any { self.end.found() } else { u32::MAX };
        self.waiting_orphans.iter_mut().for_each(|(_, before)| *before = before.saturating_sub(seen));
        // The first of `waiting_orphans` has waited longest, and is to come out first. `ready_orphans` is emptied from
        // its end, hence `rev`.
        let done = self.waiting_orphans.iter().take_while(|(_, before)| *before == 0).count();
        let waiting = self.waiting_orphans.split_off(done);
        self.ready_orphans
            .extend(mem::replace(&mut self.waiting_orphans, waiting).into_iter().rev().map(|(orphan, _)| orphan));
        if !(self.waiting_orphans.is_empty() && self.ready_orphans.is_empty() && self.departing.is_empty()) {
            // Orphans or departing pairs are left. The flag makes the next call come to this function again.
            control.mailbox.flag();
        }
        if any {
            return Ok(Found::Polled);
        }
        self.destroy_drained_pairs();
        Ok(self.next_destroyed(control).map_or(Found::Nothing, Found::Destroyed))
    }

    /// Reads what the control path has sent.
    #[cold]
    pub(super) fn read_mail(&mut self, control: &Control) {
        for message in control.mailbox.take() {
            match message {
                Message::Attach(Attached { retirer, status }) => {
                    let slot = WorkId::from_raw(retirer.oldest()).key().slot();
                    self.retirers.put(slot, retirer);
                    self.statuses.set(slot, Some(status));
                }
                Message::Join(receiver) => self.receivers.join(receiver),
                Message::Depart(pair) => self.departing.push(DepartingPair::new(pair)),
                Message::Orphan(orphan) => self.waiting_orphans.push((orphan, control.room().capacity())),
                Message::Leaked => self.has_leaked = true,
            }
        }
    }

    /// The next completion names no request that this state knows. If there is mail, its work queue may have been
    /// attached just now, so the mail is read first. Otherwise the completion is dropped and counted.
    #[cold]
    #[inline(never)]
    fn resolve_unmatched(&mut self, control: &Control) {
        if control.mailbox.has_mail() {
            self.read_mail(control);
            // `read_mail` has cleared the flag. Set the flag again: a later call must still do what `poll_with_mail`
            // does after `read_mail`, such as returning the requests of orphans.
            control.mailbox.flag();
        } else if let Some(wc) = self.end.peek() {
            // The destroy of a shared receive queue gave its requests back. So a late completion of one of them is no
            // fault of the provider, and does not count as unknown.
            self.unknown += u64::from(!self.receivers.is_of_destroyed(WorkId::from_raw(wc.wr_id)));
            self.end.skip();
        }
    }

    /// The slot of a work queue that is gone and still has requests, once its completions are all consumed. A work
    /// queue that is gone and has no requests gives its place back.
    #[cold]
    fn next_destroyed(&mut self, control: &Control) -> Option<usize> {
        while let Some(orphan) = self.ready_orphans.last() {
            let slot = orphan.place.next.key().slot();
            let mut next = orphan.place.next;
            if let Some(retirer) = self.retirers.get_mut(slot) {
                if retirer.has_any() {
                    return Some(slot);
                }
                if let Some(oldest) = self.out_of_order.oldest(slot)
                    && self.out_of_order.move_to_single(oldest, retirer)
                {
                    return Some(slot);
                }
                if orphan.place.shared.is_some() {
                    self.receivers.leave(retirer.origin().qpn(), slot);
                    control.room().forget_number(retirer.origin().qpn());
                }
                let ended = self.retirers.vacate(slot);
                next = self.out_of_order.end(slot).or(ended).map_or(next, |posted| WorkId::from_raw(posted.oldest()));
                self.statuses.set(slot, None);
            }
            if let Some(Orphan { place, keeps_lease, .. }) = self.ready_orphans.pop() {
                let shared = control.room().release(Place { next, ..place }, keeps_lease.is_none());
                if self.keeps_gone {
                    self.gone.extend(shared);
                }
                if let Some(unsettled) = keeps_lease {
                    unsettled.fetch_sub(1, Ordering::Release);
                }
            }
        }
        None
    }

    /// Marks the completion queue as failed: every later poll fails in the same way.
    #[cold]
    pub(super) fn fail(&mut self, control: &Control) -> PollError {
        self.failed = true;
        control.mailbox.flag();
        self.end.clear();
        PollError::Failed
    }

    /// Destroys the departing pairs that have nothing in flight. The completion queue was just seen empty.
    fn destroy_drained_pairs(&mut self) {
        for mut departing in mem::take(&mut self.departing) {
            let in_flight = |&slot: &usize| {
                self.retirers.get(slot).is_some_and(Retirer::has_any) || self.out_of_order.oldest(slot).is_some()
            };
            if departing.pair.slots().iter().flatten().any(in_flight) || !departing.is_past_grace() {
                departing.flush_if_due();
                self.departing.push(departing);
                continue;
            }
            self.destroy(departing);
        }
    }

    /// Destroys a pair, whose work queues then leave. If the pair cannot be destroyed, its requests in flight here are
    /// leaked.
    fn destroy(&mut self, mut departing: DepartingPair) {
        match departing.pair.destroy() {
            Ok(quiescent) => self.ready_orphans.extend(departing.pair.into_orphans(&quiescent).into_iter().flatten()),
            Err(error) => {
                departing.pair.leak(error);
                self.has_leaked = true;
            }
        }
    }

    /// Ends the polling before the completion queue is destroyed. Takes out the completions that the queue still has,
    /// if anybody needs them, and destroys the departing pairs. Returns false if a pair could not be destroyed, now or
    /// earlier: then the device may still use the memory in flight.
    pub(super) fn settle(&mut self, control: &Control) -> bool {
        self.read_mail(control);
        // A faulty device could give completions for ever, so the number of polls is limited. A correct device has no
        // more completions than the capacity, so twice that is ample.
        let mut polls = control.room().capacity().saturating_mul(2).saturating_add(64);
        while polls > 0
            && self.needs_completions()
            && let Ok(Some(())) = self.with_next(control, true, |found| drop(found.into_completion::<()>()))
        {
            polls -= 1;
        }
        for departing in mem::take(&mut self.departing) {
            self.destroy(departing);
        }
        !self.has_leaked
    }

    /// Whether the completions in the queue are still needed although nobody polls any more: for shared receives, and
    /// before departing pairs can be destroyed.
    fn needs_completions(&self) -> bool {
        !self.failed && (!self.receivers.is_empty() || !self.departing.is_empty())
    }

    /// Ends the polling, and returns the requests that are still in flight.
    pub(super) fn into_in_flight(self) -> InFlight {
        let left = self.waiting_orphans.into_iter().map(|(orphan, _)| orphan);
        let gone = self.ready_orphans.into_iter().chain(left).collect();
        InFlight { gone, retirers: self.retirers, out_of_order: self.out_of_order }
    }
}

/// The requests in flight on a completion queue that nobody polls any more. Its drop drops the requests of work queues
/// that the device is done with, and leaks all others. (There are no others, since each pair keeps its completion
/// queues alive until it is destroyed.)
pub(super) struct InFlight {
    gone: Vec<Orphan>,
    retirers: Retirers<Entry>,
    out_of_order: OutOfOrder,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for Orphan { place, quiescent, .. } in &self.gone {
            let slot = place.slot();
            while self.out_of_order.take_oldest(slot, quiescent).is_some() {}
            while self.retirers.get_mut(slot).is_some_and(|retirer| retirer.take(quiescent).is_some()) {}
        }
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
