//! The state of a queue pair that posting and polling share: whether it takes posts, and its first failure.

use super::Status;
use crate::domain::DomainId;
use crate::inflight::ledger::Detour;
use crate::inflight::{Entry, QueueKind};
use crate::provider::reviewed::Promises;
use crate::sync::{AtomicU32, Ordering};
use crate::sys;
use std::sync::Arc;

/// The state that the posting side of a pair shares with its pollers, besides the ledgers. A pair has one, for both of
/// its queues.
pub(crate) struct PairStatus {
    /// The flags of the send queue and of the receive queue. `BROKEN`: the poller has seen a failure, and posts to this
    /// queue are refused. `POISONED`: the device may have requests that the library cannot account for, and posts are
    /// refused until reset or destroy. `ENDED`: the pair was destroyed. `IN_SESSIONS`: posts go through `ibv_wr_*`.
    detours: [Detour<Entry>; 2],
    /// The first failure that stopped only the sends, and the first failure that stopped the pair. Each is a status
    /// plus 1, or 0 if there is none.
    failed_send: AtomicU32,
    failed: AtomicU32,
    pub(crate) qpn: u32,
    /// Whether the transport is UC or UD, where a failed send stops only the sends.
    unreliable: bool,
    pub(crate) domain: DomainId,
    /// Whether a request is certainly not queued if the provider refuses it and names it in `bad_wr`.
    pub(crate) refusal_is_sure: bool,
}

const BROKEN: u32 = 1;
const IN_SESSIONS: u32 = 2;
const POISONED: u32 = 4;
/// The pair is destroyed, or is about to be. Unlike the other flags, this one is never cleared.
pub(super) const ENDED: u32 = 8;

/// Whether a queue with these flags refuses posts.
#[inline(always)]
pub(crate) fn is_broken(detour: u32) -> bool {
    detour & (BROKEN | POISONED | ENDED) != 0
}

impl PairStatus {
    /// The status of a new pair of transport `kind`. `detours` are the flags of its send queue and its receive queue.
    pub(crate) fn new(
        row: &Promises,
        qpn: u32,
        kind: sys::ibv_qp_type,
        domain: DomainId,
        detours: [Detour<Entry>; 2],
    ) -> Arc<Self> {
        let unreliable = kind != sys::ibv_qp_type::IBV_QPT_RC;
        let (failed_send, failed) = Default::default();
        let refusal_is_sure = row.refusal_is_sure;
        Arc::new(Self { detours, failed_send, failed, qpn, unreliable, domain, refusal_is_sure })
    }

    /// The status of the pair after a reset. Its work queues have new ledgers, and so new flags.
    pub(crate) fn after_reset(&self, detours: [Detour<Entry>; 2]) -> Arc<Self> {
        let Self { qpn, unreliable, domain, refusal_is_sure, .. } = *self;
        for (old, new) in self.detours.iter().zip(&detours) {
            new.set(old.bits() & IN_SESSIONS);
        }
        let (failed_send, failed) = Default::default();
        Arc::new(Self { detours, failed_send, failed, qpn, unreliable, domain, refusal_is_sure })
    }

    pub(crate) fn is_broken(&self, side: QueueKind) -> bool {
        is_broken(self.of(side).bits())
    }

    /// Refuses posts until the pair is reset or destroyed.
    pub(crate) fn poison(&self) {
        self.detours.iter().for_each(|detour| detour.set(POISONED));
    }

    /// Whether the pair refuses posts until it is reset, or for ever.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.of(QueueKind::Send).bits() & (POISONED | ENDED) != 0
    }

    /// Makes sends go through `ibv_wr_*`.
    pub(crate) fn send_in_sessions(&self) {
        self.of(QueueKind::Send).set(IN_SESSIONS);
    }

    /// The flags of one of the two queues.
    fn of(&self, side: QueueKind) -> &Detour<Entry> {
        let [send, receive] = &self.detours;
        if side == QueueKind::Send { send } else { receive }
    }

    /// Marks both queues as broken, the receive queue first: [`renew_sends`](Self::renew_sends) checks the receive
    /// queue last, so it cannot undo this.
    fn break_all(&self) {
        [QueueKind::Receive, QueueKind::Send].into_iter().for_each(|side| self.of(side).set(BROKEN));
    }

    /// The first failure that stopped the sends, perhaps together with the whole pair. (A failure of the sends alone is
    /// recorded only if nothing has stopped the pair before.)
    pub(crate) fn first_failure(&self) -> Option<Status> {
        self.first_failure_of(QueueKind::Send)
    }

    /// The first failure that stopped this queue of the pair. A failure that stopped only the sends does not count for
    /// the receives.
    fn first_failure_of(&self, side: QueueKind) -> Option<Status> {
        let kept = |word: &AtomicU32| match word.load(Ordering::Relaxed) {
            0 => None,
            kept => Some(Status::from_raw(kept.wrapping_sub(1))),
        };
        let of_sends = (side == QueueKind::Send).then(|| kept(&self.failed_send)).flatten();
        of_sends.or_else(|| kept(&self.failed))
    }

    /// Records that a request of this queue has failed. Returns the first failure that was known before, if any.
    #[cold]
    pub(crate) fn note_failure(&self, side: QueueKind, failed: Status) -> Option<Status> {
        let first = self.first_failure_of(side);
        let sends_only = side == QueueKind::Send && self.unreliable;
        // A flush is always the result of another failure or of a move to Error. So a flush is never recorded as the
        // first failure.
        if first.is_none() && failed != Status::Flushed {
            // A word of 0 means "no failure", so the code is stored plus 1.
            let kept = failed.code().unwrap_or(u32::MAX - 1).saturating_add(1);
            let word = if sends_only { &self.failed_send } else { &self.failed };
            word.store(kept, Ordering::Relaxed);
        }
        if sends_only {
            self.of(side).set(BROKEN)
        } else {
            self.break_all()
        }
        first
    }

    /// Forgets all failures. For a reset with nothing in flight.
    pub(crate) fn renew(&self) {
        [&self.failed_send, &self.failed].into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.detours.iter().for_each(|detour| detour.clear(BROKEN | POISONED));
    }

    /// Lets sends go on after a failed send, unless a receive has failed meanwhile.
    pub(crate) fn renew_sends(&self) {
        self.failed_send.store(0, Ordering::Relaxed);
        self.of(QueueKind::Send).clear(BROKEN);
        if self.is_broken(QueueKind::Receive) {
            self.of(QueueKind::Send).set(BROKEN);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    //! Every interleaving of a program that lets sends go on, and a poller that sees a receive fail.
    use super::*;
    use crate::domain::Blocks;
    use crate::inflight::ledger::{Origin, ledger};
    use loom::thread;

    #[test]
    fn sends_that_go_on_do_not_hide_a_receive_that_fails() {
        loom::model(|| {
            let pool = Arc::<Blocks>::default();
            let ledgers = [(); 2].map(|()| ledger::<Entry>(&pool, 1, 0, Origin::default()).0);
            let detours = ledgers.each_ref().map(|poster| poster.detour_of());
            let status = PairStatus::new(
                &crate::provider::reviewed::UNREVIEWED,
                1,
                sys::ibv_qp_type::IBV_QPT_UC,
                DomainId::NONE,
                detours,
            );
            status.note_failure(QueueKind::Send, Status::LocalProtection);
            let polled = Arc::clone(&status);
            let polling = thread::spawn(move || polled.note_failure(QueueKind::Receive, Status::LocalLength));
            status.renew_sends();
            assert_eq!(polling.join().unwrap(), None);
            assert_eq!(status.first_failure(), Some(Status::LocalLength));
            assert_eq!([QueueKind::Send, QueueKind::Receive].map(|side| status.is_broken(side)), [true; 2]);
        });
    }
}
