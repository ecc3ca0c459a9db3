//! A queue pair without its types: the raw pair, its places on the completion queues, and its lives.

use super::attributes::{Limits, Modify};
use super::departing_pair::DepartingPair;
use super::error::TransitionFailure;
use super::local_port::LocalPort;
use super::state::{Reset, State};
use crate::completion::{Attached, CqInner, Orphan, Place, SharedReceiver};
use crate::domain::{Blocks, DomainInner};
use crate::inflight::ledger::{Detour, Origin, Poster, Retirer, ledger};
use crate::inflight::{
    Entry, PairStatus, QueueKind, RawPair, ReceiveQueue, SendQueue, SharedCore, Status, polling_lock, raw_pair,
};
use crate::provider::reviewed::Teardown;
use crate::sys::{self, ibv_qp_attr_mask as Mask};
use crate::types::{Psn, Qpn, ReadDepth};
use crate::verb_error::{VerbError, note_leak};
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};

/// A queue pair without its types: a few words, which go from state to state.
pub(crate) struct UntypedPair {
    pub(crate) send: SendQueue,
    /// # Invariants
    ///
    /// 0. The only reference: halves are made from these parts, and become them again.
    pub(crate) core: Arc<PairCore>,
    pub(crate) receive: ReceiveQueue,
}

/// What both halves of a pair need, and what ends with the last of them.
pub(crate) struct PairCore {
    pub(crate) raw: RawPair,
    /// `None` once the pair was destroyed, was handed to its poller, or was leaked.
    pub(crate) places: Option<Places>,
    pub(crate) status: Arc<PairStatus>,
    /// How many ledgers of an earlier life may still have completions in a completion queue.
    pub(crate) unsettled: Arc<AtomicU32>,
    pub(crate) limits: Limits,
    pub(crate) local: LocalPort,
    // Dropped in this order, after the pair is destroyed.
    pub(crate) send_queue: Arc<CqInner>,
    pub(crate) receive_queue: Arc<CqInner>,
    /// The shared receive queue, if the pair has no receives of its own.
    pub(crate) shared: Option<Arc<SharedCore>>,
    pub(crate) domain: Arc<DomainInner>,
}

/// The places of a pair on its completion queues: the name of each work queue, and the room that it leases.
pub(crate) struct Places {
    pub(crate) send: Place,
    pub(crate) receive: Place,
}

/// Why a pair was not destroyed.
pub(crate) struct UndestroyedPair {
    pub(crate) source: VerbError,
    /// The pair may be half-destroyed: it was leaked, with everything that it needs.
    pub(crate) is_lost: bool,
}

impl UntypedPair {
    /// The core. `None` if there are halves of the pair, which cannot be while the pair is whole (0).
    pub(crate) fn unsplit(&mut self) -> Option<&mut PairCore> {
        Arc::get_mut(&mut self.core)
    }

    pub(crate) fn reset(&mut self) -> Result<(), TransitionFailure> {
        let verb = |source| TransitionFailure::Verb { to: Reset::NAME, source };
        let drained = self.send.outstanding() == 0 && self.receive.outstanding() == 0;
        let Some(core) = Arc::get_mut(&mut self.core) else {
            return Err(verb(VerbError::new("ibv_modify_qp", libc::EBUSY)));
        };
        core.can_be_reset(drained, self.send.outstanding(), self.receive.outstanding())?;
        let psn = core.psn_of_next_life();
        // How many shared receives the pair has begun is not known.
        if drained && core.shared.is_none() {
            // Every request has come out, so no completion of this life is left in a queue.
            core.reset().map_err(verb)?;
            core.local.psn = psn;
            core.status.renew();
            return Ok(());
        }
        // A new life has new places, so that no completion of the old one is taken for its own.
        let Some(old) = &core.places else { return Err(TransitionFailure::NoSlot) };
        let Some(send) = core.send_queue.renew(QueueKind::Send, &old.send) else {
            return Err(TransitionFailure::NoSlot);
        };
        let Some(receive) = core.receive_queue.renew(QueueKind::Receive, &old.receive) else {
            core.send_queue.release(send, false);
            return Err(TransitionFailure::NoSlot);
        };
        if let Err(error) = core.reset() {
            core.send_queue.release(send, false);
            core.receive_queue.release(receive, false);
            return Err(verb(error));
        }
        core.local.psn = psn;
        let places = Places { send, receive };
        let origin = Origin::new(core.status.qpn, core.status.peers.is_some());
        let takes_unsignalled = core.domain.context.promises().sends_may_be_unsignalled();
        let ledgers = PairLedgers::new(&core.domain.ledgers, &places, &core.limits, origin, takes_unsignalled);
        core.status = core.status.anew(ledgers.detours());
        let (send, receive) = ledgers.attach(&core.send_queue, &core.receive_queue, &core.status);
        self.send.renew(send, Arc::clone(&core.status));
        self.receive.renew(receive, Arc::clone(&core.status));
        core.unsettled.fetch_add(2, Ordering::Relaxed);
        if let Some(old) = core.places.replace(places) {
            core.orphan(old.send, old.receive, Some(&core.unsettled));
        }
        Ok(())
    }
}

impl PairCore {
    pub(crate) fn modify(&self, mut modify: Modify) -> Result<(), VerbError> {
        self.raw.modify(&mut modify.attributes, modify.mask)
    }

    fn reset(&self) -> Result<(), VerbError> {
        reset(&self.raw, &self.domain)
    }

    /// Whether a reset of the pair proves that the device is done with its requests. There are `sends` and `receives`
    /// in flight; none if `drained`.
    fn can_be_reset(&self, drained: bool, sends: u32, receives: u32) -> Result<(), TransitionFailure> {
        let row = self.domain.context.promises();
        // Nobody knows which shared receives the pair has begun.
        if self.shared.is_some() && (row.teardown != Teardown::Anytime || !row.reset_is_barrier) {
            return Err(TransitionFailure::ResetShared { provider: row.name });
        }
        if drained || row.reset_is_barrier {
            return Ok(());
        }
        Err(TransitionFailure::ResetInFlight { sends, receives, provider: row.name })
    }

    /// Whether only the poller may destroy the pair, since the provider wants its completions polled first.
    pub(crate) fn ends_by_poller(&self) -> bool {
        self.domain.context.promises().leaves_to_poller(self.shared.is_some())
    }

    /// The first packet sequence number of the next life. It is counted from the number that the device would send
    /// next. Some devices report 0 in Error; then it is counted from the first number of this life.
    fn psn_of_next_life(&self) -> Psn {
        let next = self.query(Mask::IBV_QP_SQ_PSN).map_or(0, |now| now.sq_psn);
        if next == 0 { self.local.psn } else { Psn::clamped(next) }.of_next_life()
    }

    pub(crate) fn query(&self, mask: Mask) -> Result<sys::ibv_qp_attr, VerbError> {
        self.raw.query(mask)
    }

    /// Destroys the pair, or lets its poller do so.
    pub(crate) fn destroy(&mut self) -> Result<(), UndestroyedPair> {
        if self.ends_by_poller() && self.places.is_some() {
            self.depart();
            return Ok(());
        }
        self.destroy_now()
    }

    /// Destroys the pair. Where [its poller does that](Self::ends_by_poller), the caller must be that poller, and must
    /// not poll again unless nothing of the pair is in flight.
    pub(crate) fn destroy_now(&mut self) -> Result<(), UndestroyedPair> {
        let dead = |source| UndestroyedPair { source, is_lost: true };
        if self.places.is_none() {
            return Err(dead(VerbError::new("ibv_destroy_qp", libc::EIO)));
        }
        if let Err(source) = destroy(&mut self.raw, &self.domain, &self.status) {
            let is_lost = !self.domain.context.promises().destroy_may_be_retried;
            if is_lost {
                self.leak();
            }
            return Err(UndestroyedPair { source, is_lost });
        }
        if let Some(Places { send, receive }) = self.places.take() {
            self.orphan(send, receive, None);
        }
        Ok(())
    }

    /// Lets the poller destroy the pair.
    fn depart(&mut self) {
        let Some(places) = self.places.take() else { return };
        let (status, domain) = (Arc::clone(&self.status), Arc::clone(&self.domain));
        let sends_on = (!Arc::ptr_eq(&self.send_queue, &self.receive_queue)).then(|| Arc::clone(&self.send_queue));
        let raw = self.raw.take();
        let departing = DepartingPair { raw, places, sends_on, status, _shared: self.shared.clone(), domain };
        // This flushes what is in flight. Where it fails, the pair is destroyed with its completion queue.
        departing.flush();
        self.receive_queue.depart(Box::new(departing));
    }

    /// Leaks everything that the device may still use.
    fn leak(&mut self) {
        self.status.poison();
        mem::forget(self.places.take());
        mem::forget(self.status.peers.clone());
        mem::forget(Arc::clone(&self.send_queue));
        mem::forget(Arc::clone(&self.receive_queue));
        mem::forget(self.shared.clone());
        mem::forget(self.raw.take());
        mem::forget(Arc::clone(&self.domain));
    }

    /// Tells the pollers that the device is done with what these places have in flight.
    fn orphan(&self, send: Place, receive: Place, keeps_lease: Option<&Arc<AtomicU32>>) {
        for (queue, place) in [(&self.send_queue, send), (&self.receive_queue, receive)] {
            queue.orphan(Orphan { place, keeps_lease: keeps_lease.cloned() });
        }
    }

    /// How many handles of `queue` there are besides the pair's own two and its poller's. `None` if the pair completes
    /// on another queue. If there are none, none can come: handles are made from handles.
    pub(crate) fn others_on(&self, queue: &Arc<CqInner>) -> Option<usize> {
        let is_ours = Arc::ptr_eq(&self.send_queue, queue) && Arc::ptr_eq(&self.receive_queue, queue);
        is_ours.then(|| Arc::strong_count(queue).saturating_sub(3))
    }

    /// Whether all completions of earlier lives have been seen.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire) == 0
    }

    /// What the device can do.
    pub(crate) fn device(&self) -> Result<sys::ibv_device_attr, VerbError> {
        raw_pair::device(&self.domain.context)
    }

    /// Checks that the device can have that many reads and atomics at once, as responder and as requester. Not every
    /// device checks this. If the device cannot be queried, the transition itself will fail or not.
    pub(crate) fn has_depths(
        &self,
        responder: Option<ReadDepth>,
        initiator: Option<ReadDepth>,
    ) -> Result<(), TransitionFailure> {
        let Ok(device) = self.device() else { return Ok(()) };
        for (asked, most) in [(responder, device.max_qp_rd_atom), (initiator, device.max_qp_init_rd_atom)] {
            let most = most.try_into().unwrap_or(0);
            if let Some(asked) = asked.filter(|asked| u32::from(asked.value()) > most) {
                return Err(TransitionFailure::ReadDepth { asked, most });
            }
        }
        Ok(())
    }

    pub(crate) fn qpn(&self) -> Qpn {
        Qpn::from_device(self.status.qpn)
    }

    /// Whether posts are refused: a request failed, or may have been half posted.
    pub(crate) fn is_broken(&self) -> bool {
        [QueueKind::Send, QueueKind::Receive].into_iter().any(|side| self.status.is_broken(side))
    }

    pub(crate) fn first_failure(&self) -> Option<Status> {
        self.status.first_failure()
    }

    /// Forgets failed sends. The pair sends again, and no earlier send is in flight.
    pub(crate) fn forget_failures(&self) {
        self.status.renew_sends();
    }

    /// Whether only a reset or a destroy helps.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.status.is_poisoned()
    }
}

impl Drop for PairCore {
    fn drop(&mut self) {
        if self.places.is_none() {
            return;
        }
        if let Err(UndestroyedPair { source, is_lost }) = self.destroy() {
            note_leak("a queue pair", source);
            if !is_lost {
                self.leak();
            }
        }
    }
}

/// Moves the pair to Reset.
fn reset(raw: &RawPair, domain: &DomainInner) -> Result<(), VerbError> {
    let _turn = turn_for(domain, raw);
    raw.reset()
}

/// Destroys the pair, and before it what belongs to it.
pub(super) fn destroy(raw: &mut RawPair, domain: &DomainInner, status: &PairStatus) -> Result<(), VerbError> {
    raw.detach_all()?;
    if raw.has_windows() {
        // From here on nothing may be posted, also if the rest fails.
        status.poison();
        reset(raw, domain)?;
        raw.free_windows()?;
    }
    raw.destroy(Some(status))
}

/// The turn of the pair's completion queue, on providers where no poll may be under way while a pair is reset or
/// destroyed. There a pair has one completion queue.
pub(super) fn turn_for(domain: &DomainInner, raw: &RawPair) -> Option<MutexGuard<'static, ()>> {
    (domain.context.promises().teardown == Teardown::Polled).then(|| polling_lock(raw.send_cq()))
}

/// The ledgers of one life of a pair, before their ends go to the work queues and to the pollers.
pub(crate) struct PairLedgers {
    send: (Poster<Entry>, Retirer<Entry>),
    receive: (Poster<Entry>, Retirer<Entry>),
    /// For a pair on a shared receive queue: its poller posts each receive here when the receive has completed.
    brought: Option<SharedReceiver>,
}

impl PairLedgers {
    /// If `retires_prefix`, the completion of a send ends the sends before it. Each receive has its own completion.
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
        let (posts, brought) = match &places.receive.shared {
            None => (poster, None),
            // Nobody posts to the pair's own receive queue.
            Some(shared) => {
                let (qpn, slot, ledger_of_all) = (origin.qpn(), first.key().slot(), shared.clone());
                (
                    ledger(pool, 1, first.raw(), origin).0,
                    Some(SharedReceiver { qpn, slot, poster, ledger: ledger_of_all }),
                )
            }
        };
        Self { send: ledger(pool, limits.sends, first_send, of_sends), receive: (posts, retirer), brought }
    }

    pub(crate) fn detours(&self) -> [Detour<Entry>; 2] {
        [self.send.0.detour_of(), self.receive.0.detour_of()]
    }

    /// Gives the ends that take out to the pollers of the two queues, and returns the ends that post.
    pub(crate) fn attach(
        self,
        sends: &CqInner,
        receives: &CqInner,
        status: &Arc<PairStatus>,
    ) -> (Poster<Entry>, Poster<Entry>) {
        let Self { send, receive, brought } = self;
        sends.attach(Attached { retirer: send.1, status: Arc::clone(status) });
        receives.attach(Attached { retirer: receive.1, status: Arc::clone(status) });
        if let Some(member) = brought {
            receives.join(member);
        }
        (send.0, receive.0)
    }
}
