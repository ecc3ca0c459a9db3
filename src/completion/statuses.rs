//! What broke the work queues of a completion queue.

use crate::inflight::{PairStatus, QueueKind, Status, WorkId};
use std::sync::Arc;

/// The statuses of the work queues of a completion queue.
#[derive(Default)]
pub(super) struct Statuses {
    by_slot: Vec<Option<Arc<PairStatus>>>,
    /// A failure that was noted before its request came out, and what had broken the queue before. One is enough: the next completion is
    /// looked at once this one was taken.
    early: Option<(WorkId, Option<Status>)>,
}

impl Statuses {
    /// That of the queue of the request with this id.
    #[cold]
    pub(super) fn of(&self, id: WorkId) -> Option<&PairStatus> {
        self.by_slot.get(id.key().slot())?.as_deref()
    }

    /// Notes that the request has failed; gives what had broken its queue before. `side`: where a shared receive is a receive of the pair.
    #[cold]
    pub(super) fn note(&self, id: WorkId, side: QueueKind, failed: Status) -> Option<Status> {
        match self.early {
            Some((early, first)) if early == id => first,
            _ => self.of(id)?.note_failure(side, failed),
        }
    }

    /// The same, before the request comes out.
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
