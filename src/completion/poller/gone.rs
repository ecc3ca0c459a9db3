//! Work queues that have gone: the requests that they leave; the destroy of departing pairs; and the end of the
//! polling, when the completion queue itself goes.

use super::PollState;
use crate::completion::control::Control;
use crate::completion::departing::{Departure, Leftover, Remains};
use crate::completion::message::{Orphan, Place};
use crate::completion::out_of_order::OutOfOrder;
use crate::completion::retired::Retirement;
use crate::inflight::ledger::{Retirer, Retirers};
use crate::inflight::{Entry, WorkId};
use std::sync::atomic::Ordering;

impl PollState {
    /// The oldest request of a work queue that is gone: the last of `ready_orphans`, in this slot.
    #[cold]
    pub(super) fn destroyed(&mut self, slot: usize) -> Option<Retirement<'_>> {
        let Orphan { quiescent, .. } = self.ready_orphans.last()?;
        let oldest = self.retirers.get_mut(slot)?.lend().oldest_of(quiescent)?;
        Some(Retirement::destroyed(oldest, &self.statuses))
    }

    /// The slot of a work queue that is gone and still has requests, once its completions are all consumed. A work
    /// queue that is gone and has no requests gives its place back.
    #[cold]
    pub(super) fn next_destroyed(&mut self, control: &Control) -> Option<usize> {
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
                self.let_go(shared.map(|shared| Box::new(shared) as Leftover));
                if let Some(unsettled) = keeps_lease {
                    unsettled.fetch_sub(1, Ordering::Release);
                }
            }
        }
        None
    }

    /// Destroys the departing pairs that have nothing in flight. The completion queue was just seen empty.
    pub(super) fn destroy_drained_pairs(&mut self) {
        let mut at = 0;
        while let Some(departing) = self.departing.get_mut(at) {
            let in_flight = |&slot: &usize| {
                self.retirers.get(slot).is_some_and(Retirer::has_any) || self.out_of_order.oldest(slot).is_some()
            };
            if departing.pair.slots().iter().flatten().any(in_flight) || !departing.is_past_grace() {
                departing.flush_if_due();
                at += 1;
                continue;
            }
            let departing = self.departing.swap_remove(at);
            self.destroy_departing(departing);
        }
    }

    /// Destroys a pair. After a success, `ready_orphans` has its work queues, whose requests in flight on this
    /// completion queue can then be released. After a failure, these requests are leaked. The call may drop memory of
    /// the program.
    fn destroy_departing(&mut self, mut departing: Departure) {
        match departing.pair.destroy() {
            Ok(quiescent) => {
                let Remains { orphans, leftover } = departing.pair.into_remains(&quiescent);
                self.ready_orphans.extend(orphans.into_iter().flatten());
                self.let_go(leftover);
            }
            Err(error) => {
                departing.pair.leak(error);
                self.has_leaked = true;
            }
        }
    }

    /// Drops what the poller has no more use for, or keeps it for a caller who may not drop it now.
    fn let_go(&mut self, leftover: Option<Leftover>) {
        if self.keeps_leftovers {
            self.leftovers.extend(leftover);
        }
    }

    /// Ends the polling before the completion queue is destroyed. Takes out the completions that the queue still has,
    /// if anybody needs them, and destroys the departing pairs. Returns false if a pair could not be destroyed, now or
    /// earlier: then the device may still use the memory in flight.
    pub(in crate::completion) fn settle(&mut self, control: &Control) -> bool {
        self.read_mail(control);
        // Each round takes out at least one request, and at most `capacity` requests are in flight here, so this limit
        // is large enough. Completions that name no request do not count: `with_next` skips them.
        let mut polls = control.room().capacity().saturating_mul(2).saturating_add(64);
        while polls > 0
            && self.needs_completions()
            && let Ok(Some(())) = self.with_next(control, true, |found| drop(found.into_completion::<()>()))
        {
            polls -= 1;
        }
        while let Some(departing) = self.departing.pop() {
            self.destroy_departing(departing);
        }
        !self.has_leaked
    }

    /// Whether the completions in the queue are still needed although nobody polls any more: for shared receives, and
    /// before departing pairs can be destroyed.
    fn needs_completions(&self) -> bool {
        !self.failed && (!self.receivers.is_empty() || !self.departing.is_empty())
    }

    /// Ends the polling, and returns the requests that are still in flight.
    pub(in crate::completion) fn into_in_flight(self) -> InFlight {
        let left = self.waiting_orphans.into_iter().map(|(orphan, _)| orphan);
        let gone = self.ready_orphans.into_iter().chain(left).collect();
        InFlight { gone, retirers: self.retirers, out_of_order: self.out_of_order }
    }
}

/// The requests in flight on a completion queue that nobody polls any more. Its drop drops the requests of work queues
/// that the device is done with, and leaks all others. (There are no others, since each pair keeps its completion
/// queues alive until it is destroyed.)
pub(in crate::completion) struct InFlight {
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
