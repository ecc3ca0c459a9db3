//! How a sender or a receiver holds its lane.

use super::desk::{Broken, Desk};
use super::lane::{Left, Parked};
use super::outcome::Counters;
use super::pairs::WatchKey;
use super::shared_poller::SharedPoller;
use crate::completion::PollError;
use crate::inflight::{Status, WorkId};
use crate::queue::QueueIds;
use crate::types::Qpn;
use std::sync::Arc;
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
    other: Option<Other<B>>,
}

/// The poller of the pair's other lane, if that is another poller. Each half of the pair needs the drivers of both
/// pollers, so it keeps a handle of that poller too.
struct Other<B> {
    poller: SharedPoller<B>,
    /// The [place](super::pairs::Pairs::watch) at the desk of `poller`, for a task that waits here for the end of the
    /// pair.
    watch: WatchKey,
}

impl<B> LaneHandle<B> {
    /// A lane for the work queue with these ids.
    pub(super) fn new(poller: SharedPoller<B>, ids: impl FnOnce() -> QueueIds, depth: u32) -> Self {
        let (ids, generation, late) = poller.desk().attach(ids, depth);
        let QueueIds { next, pair, .. } = ids;
        let lane = Self { poller, slot: next.key().slot(), generation, first: next, next, pair, other: None };
        // `settle_late` runs wakers. If a waker panics, `lane` is dropped, and its drop ends the lane.
        lane.desk().settle_late(ids, late);
        lane
    }

    /// Notes that these are the lanes of one pair.
    pub(super) fn join(left: &mut Self, right: &mut Self) {
        if !Arc::ptr_eq(left.desk(), right.desk()) {
            left.note_other(right.poller.clone());
            right.note_other(left.poller.clone());
        }
    }

    fn note_other(&mut self, poller: SharedPoller<B>) {
        let watch = poller.desk().with(|state| state.pairs.watch(self.pair));
        self.other = Some(Other { poller, watch });
    }

    /// The desk of the pair's other lane, if that is another desk, and the place there for a task that waits here.
    pub(super) fn other(&self) -> Option<(&Arc<Desk<B>>, WatchKey)> {
        self.other.as_ref().map(|other| (other.poller.desk(), other.watch))
    }

    /// A task that waits here waits at the other desk too, if there is another one: the end of the pair wakes it there.
    pub(super) fn watch_other(&self, context: &mut Context<'_>) -> Result<(), PollError> {
        self.other().map_or(Ok(()), |(desk, place)| desk.watch(place, context))
    }

    /// Ends the wait of [`watch_other`](Self::watch_other).
    pub(super) fn stop_watching_other(&self) {
        drop(self.other().map(|(desk, place)| desk.stop_watching(place)));
    }

    /// Names the pair as broken. The drop of the result wakes the tasks that the end of the pair concerns.
    pub(super) fn broken(&self) -> Broken<B> {
        Broken::new(Arc::clone(self.desk()), self.pair)
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
        let left = self.desk().end(self.slot, self.generation, self.next);
        if let Some((desk, place)) = self.other() {
            // The waker is dropped without the lock.
            drop(desk.with(|state| state.pairs.unwatch(place, &mut state.lanes.tally)));
        }
        left
    }
}

impl<B> Drop for LaneHandle<B> {
    fn drop(&mut self) {
        // The drop of what `end` returns can run code of the program. `end` has released the lock, so no lock is held.
        drop(self.end());
    }
}
