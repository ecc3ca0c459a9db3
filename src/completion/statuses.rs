//! The statuses of the queue pairs of a completion queue, where failures are recorded.

use crate::inflight::{PairStatus, QueueKind, Status, WorkId};
use std::sync::Arc;

/// The statuses of the queue pairs, by the slots of their work queues.
#[derive(Default)]
pub(super) struct Statuses {
    by_slot: Vec<Option<Arc<PairStatus>>>,
    /// A request whose failure was recorded before the request was returned, and the failure that its pair had before,
    /// if any. One entry is enough: the poller returns this request before it takes the next completion.
    early: Option<(WorkId, Option<Status>)>,
}

impl Statuses {
    /// The status of the pair that the request with this id was posted to.
    #[cold]
    pub(super) fn of(&self, id: WorkId) -> Option<&PairStatus> {
        self.by_slot.get(id.key().slot())?.as_deref()
    }

    /// Records that a request has failed, and returns the failure that the pair had before, if any. `side` is the kind
    /// of the work queue; a shared receive counts as a receive of its pair.
    #[cold]
    pub(super) fn note(&self, id: WorkId, side: QueueKind, failed: Status) -> Option<Status> {
        match self.early {
            Some((early, first)) if early == id => first,
            _ => self.of(id)?.note_failure(side, failed),
        }
    }

    /// As [`note`](Self::note), for a request that is returned later.
    #[cold]
    pub(super) fn note_early(&mut self, id: WorkId, failed: Status) {
        self.early = Some((id, self.note(id, id.key().kind(), failed)));
    }

    pub(super) fn set(&mut self, slot: usize, status: Option<Arc<PairStatus>>) {
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, None);
        }
        if let Some(place) = self.by_slot.get_mut(slot) {
            *place = status;
        }
    }
}
