//! The messages by which the control path informs the poller of a completion queue.

use super::departing::Departing;
use super::shared_receivers::SharedReceiver;
use crate::inflight::ledger::Retirer;
use crate::inflight::{Entry, PairStatus, Quiescent, SharedLedger, WorkId};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The place of a work queue on a completion queue: its slot, and its lease of room. Not `Copy`, because a place is
/// given back only once.
#[derive(Debug)]
pub(crate) struct Place {
    /// The id of the first request of the work queue. When the place is given back: the id after the last request.
    pub(crate) next: WorkId,
    /// How many completions the work queue leases room for.
    pub(super) depth: u32,
    /// The shared receive queue from which the pair receives. All pairs of one shared receive queue share one lease.
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

/// A work queue whose pair was destroyed or reset, so that the device is done with it.
pub(crate) struct Orphan {
    pub(crate) place: Place,
    /// `Some` after a reset: the pair keeps its lease. The counter holds how many of the pair's work queues may still
    /// have completions from before a reset in a completion queue.
    pub(crate) keeps_lease: Option<Arc<AtomicU32>>,
    /// Proves that the device is done with the work queue.
    pub(crate) quiescent: Quiescent,
}

/// A message from the control path to the poller.
pub(super) enum Message {
    /// A work queue was attached.
    Attach(Attached),
    /// The pair of an attached work queue receives from a shared receive queue.
    Join(SharedReceiver),
    /// The device is done with a work queue.
    Orphan(Orphan),
    /// Asks the poller to destroy a pair once no request of the pair is in flight.
    Depart(Box<dyn Departing>),
    /// A pair was leaked, because the device did not destroy it.
    Leaked,
}
