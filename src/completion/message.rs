//! What the control path tells the poller of a completion queue: the messages in its mailbox.

use super::departing::Departing;
use super::shared_receivers::SharedReceiver;
use crate::inflight::ledger::Retirer;
use crate::inflight::{Entry, PairStatus, SharedLedger, WorkId};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The place of a work queue on a completion queue: its slot, and its lease of room. Not `Copy`: it is given back once.
#[derive(Debug)]
pub(crate) struct Place {
    /// The id of the first request of the work queue. When the place is given back: the id after the last request.
    pub(crate) next: WorkId,
    /// How much room it leases.
    pub(super) depth: u32,
    /// The shared receive queue that the pair receives from. The pairs of one shared queue have one lease together.
    pub(crate) shared: Option<SharedLedger>,
}

impl Place {
    pub(crate) fn slot(&self) -> usize {
        self.next.key().slot()
    }
}

/// A work queue that was attached.
pub(crate) struct Attached {
    pub(crate) retirer: Retirer<Entry>,
    pub(crate) status: Arc<PairStatus>,
}

/// A work queue that the device is done with, since its pair was destroyed or reset.
pub(crate) struct Orphan {
    pub(crate) place: Place,
    /// The pair was reset: it keeps its lease, and this counts its work queues with old completions that nobody has
    /// seen.
    pub(crate) keeps_lease: Option<Arc<AtomicU32>>,
}

/// What the control path tells the poller.
pub(super) enum Message {
    /// A work queue was attached.
    Attach(Attached),
    /// The pair of an attached work queue receives from a shared receive queue.
    Join(SharedReceiver),
    /// The device is done with a work queue.
    Orphan(Orphan),
    /// The poller shall destroy a pair once nothing of it is in flight.
    Depart(Box<dyn Departing>),
}
