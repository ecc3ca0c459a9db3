//! The places of a queue pair on its completion queues, and the ledgers behind them.

use super::attributes::Limits;
use crate::completion::{Attached, CqInner, NoRoom, Place, SharedReceiver};
use crate::domain::Blocks;
#[cfg(feature = "aio")]
use crate::inflight::WorkId;
use crate::inflight::ledger::{Detour, Origin, Poster, Retirer, ledger};
use crate::inflight::{Entry, PairStatus, QueueKind, SharedCore};
#[cfg(feature = "aio")]
use crate::types::Qpn;
use std::ptr;
use std::sync::Arc;

/// The places of a pair on its completion queues: the slot of each work queue, and the room that it leases.
pub(crate) struct Places {
    pub(crate) send: Place,
    pub(crate) receive: Place,
}

/// Which ids a work queue uses.
#[cfg(feature = "aio")]
#[derive(Clone, Copy)]
pub(crate) struct QueueIds {
    /// The first id of the pair in its slot.
    pub(crate) first: WorkId,
    /// The id of the next request.
    pub(crate) next: WorkId,
    /// How many requests before `next` are in flight.
    pub(crate) in_flight: u32,
    /// The pair of the work queue.
    pub(crate) pair: Qpn,
}

/// Leases a place on each of the two completion queues. If one has no room, neither keeps a lease.
pub(super) fn lease(
    sends: &CqInner,
    receives: &CqInner,
    limits: &Limits,
    shared: Option<&Arc<SharedCore>>,
) -> Result<Places, NoRoom> {
    // If sends and receives complete on one queue, the error names what the whole pair needs, and how much was free
    // before the pair leased anything.
    let of_both = |error: NoRoom, other: u32, leased: u32| match ptr::eq(sends, receives) {
        true => NoRoom { needed: error.needed.saturating_add(other), free: error.free.saturating_add(leased) },
        false => error,
    };
    let of_receives = match shared {
        Some(shared) => receives.needed_by(&shared.ledger),
        None => limits.receives,
    };
    let send = sends.lease(QueueKind::Send, limits.sends).map_err(|error| of_both(error, of_receives, 0))?;
    let receive = match shared {
        Some(shared) => receives.lease_shared(&shared.ledger),
        None => receives.lease(QueueKind::Receive, limits.receives),
    };
    match receive {
        Ok(receive) => Ok(Places { send, receive }),
        Err(error) => {
            sends.release(send, true);
            Err(of_both(error, limits.sends, limits.sends))
        }
    }
}

/// The ledgers that a pair has from one reset to the next. [`attach`](Self::attach) hands their ends to the work queues
/// and to the pollers.
pub(crate) struct PairLedgers {
    send: (Poster<Entry>, Retirer<Entry>),
    receive: (Poster<Entry>, Retirer<Entry>),
    /// For a pair on a shared receive queue: through this the poller moves a completed shared receive into the pair's
    /// own ledger.
    shared_receiver: Option<SharedReceiver>,
}

impl PairLedgers {
    /// If `retires_prefix` is true, the completion of a send also retires the sends before it. Each receive has its own
    /// completion.
    pub(crate) fn new(
        pool: &Arc<Blocks>,
        places: &Places,
        limits: &Limits,
        origin: Origin,
        retires_prefix: bool,
    ) -> Self {
        let (first_send, first) = (places.send.next.raw(), places.receive.next);
        let of_sends = origin.retiring_prefixes(retires_prefix);
        let (poster, retirer) = ledger(pool, limits.receives, first.raw(), origin);
        let (posts, shared_receiver) = match &places.receive.shared {
            None => (poster, None),
            // With a shared receive queue, only the poller posts to the pair's ledger for receives. The pair's own
            // receive queue gets another ledger, which stays empty.
            Some(shared) => {
                let (qpn, slot, ledger_of_all) = (origin.qpn(), first.key().slot(), shared.clone());
                (
                    ledger(pool, 1, first.raw(), origin).0,
                    Some(SharedReceiver { qpn, slot, poster, ledger: ledger_of_all }),
                )
            }
        };
        Self { send: ledger(pool, limits.sends, first_send, of_sends), receive: (posts, retirer), shared_receiver }
    }

    pub(crate) fn detours(&self) -> [Detour<Entry>; 2] {
        [self.send.0.detour_of(), self.receive.0.detour_of()]
    }

    /// Gives the retiring ends to the pollers of the two queues, and returns the posting ends.
    pub(crate) fn attach(
        self,
        sends: &CqInner,
        receives: &CqInner,
        status: &Arc<PairStatus>,
    ) -> (Poster<Entry>, Poster<Entry>) {
        let Self { send, receive, shared_receiver } = self;
        sends.attach(Attached { retirer: send.1, status: Arc::clone(status) });
        receives.attach(Attached { retirer: receive.1, status: Arc::clone(status) });
        if let Some(member) = shared_receiver {
            receives.join(member);
        }
        (send.0, receive.0)
    }
}
