//! How a sender or a receiver holds its lane.

use super::desk::{Broken, Desk};
use super::lane::{Left, Parked};
use super::outcome::Counters;
use super::shared_poller::SharedPoller;
use crate::completion::PollError;
use crate::inflight::{Status, WorkId};
use crate::queue::QueueIds;
use crate::types::Qpn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

/// The handle of a sender or a receiver to its lane. The drop of the handle ends the lane.
pub(super) struct LaneHandle<B> {
    poller: SharedPoller<B>,
    slot: usize,
    generation: u64,
    /// The id of the first request that is posted through this handle.
    first: WorkId,
    /// The next id of the work queue.
    next: WorkId,
    pair: Qpn,
    /// The desk of the pair's other lane, if that is another desk.
    other: Option<Weak<Desk<B>>>,
}

impl<B> LaneHandle<B> {
    /// A lane for the work queue with these ids.
    pub(super) fn new(poller: SharedPoller<B>, ids: impl FnOnce() -> QueueIds, depth: u32) -> Self {
        let (ids, generation, late) = poller.desk().attach(ids, depth);
        let QueueIds { next, pair, .. } = ids;
        let lane = Self { poller, slot: next.key().slot(), generation, first: next, next, pair, other: None };
        // This runs wakers. If one panics, the lane ends with its handle.
        lane.desk().settle_late(ids, late);
        lane
    }

    /// Notes that these are the lanes of one pair. If they are at two desks, each desk learns of the other, so that the
    /// end of the pair wakes those who wait at either.
    pub(super) fn join(left: &mut Self, right: &mut Self) {
        if !Arc::ptr_eq(left.desk(), right.desk()) {
            left.note_other(right);
            right.note_other(left);
        }
    }

    fn note_other(&mut self, other: &Self) {
        let desk = Arc::downgrade(other.desk());
        self.other = Some(Weak::clone(&desk));
        self.desk().with(|state| state.note_other(self.pair, desk, other.generation));
    }

    /// The pair, which is broken: its drop wakes all whom that concerns, at both desks.
    pub(super) fn broken(&self) -> [Option<Broken<B>>; 2] {
        let other = self.other.as_ref().and_then(Weak::upgrade);
        [Some(Arc::clone(self.desk())), other].map(|desk| desk.map(|desk| Broken::new(desk, self.pair)))
    }

    #[inline(always)]
    pub(super) fn desk(&self) -> &Arc<Desk<B>> {
        self.poller.desk()
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// Notes the next id of the work queue.
    #[inline(always)]
    pub(super) fn note_next(&mut self, next: WorkId) {
        self.next = next;
    }

    pub(super) fn poller(&self) -> &SharedPoller<B> {
        &self.poller
    }

    /// The counters of the requests. `next` is the id that the next request gets. `in_flight` requests have not
    /// completed.
    pub(super) fn counters(&self, next: WorkId, in_flight: u32) -> Counters {
        let posted = next.count_since(self.first);
        let completed = posted.saturating_sub(in_flight.into());
        Counters { posted, completed, ..self.desk().with(|state| state.lanes.counters(self.slot)) }
    }

    /// Waits until the pair breaks, and returns what `failed` then returns.
    pub(super) fn poll_failure(
        &self,
        context: &mut Context<'_>,
        failed: impl Fn() -> Option<Status>,
    ) -> Poll<Result<Status, PollError>> {
        self.desk().poll_for(
            context,
            |_| failed(),
            |state, waker, mine, after| {
                let parked = state.lanes.with(self.slot, |lane, tally| lane.park_watcher(waker, mine, tally, after));
                parked.unwrap_or(Parked::Yes)
            },
        )
    }

    /// Ends the lane, and returns what nobody has fetched from it.
    pub(super) fn end(&self) -> Option<Left<B>> {
        let other = self.other.as_ref().and_then(Weak::upgrade);
        if let Some(other) = other {
            other.with(|state| state.forget_other(self.pair, self.generation));
        }
        self.desk().end(self.slot, self.generation, self.next)
    }
}

impl<B> Drop for LaneHandle<B> {
    fn drop(&mut self) {
        // What is left is dropped without the lock, since that may run code of the program.
        drop(self.end());
    }
}
