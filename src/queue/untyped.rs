//! A queue pair without its types: the raw pair, its places on the completion queues, and what a reset replaces.

use super::attributes::{Limits, Modify};
use super::error::TransitionFailure;
use super::local_port::LocalPort;
use super::pair_end::{DepartingPair, destroy, reset_in_turn};
use super::places::{PairLedgers, Places};
use super::state::{DeviceState, Reset, State};
use crate::completion::{CqInner, Orphan, Place, Poller};
use crate::device::iwarp::NotOnIwarp;
use crate::domain::DomainInner;
use crate::inflight::ledger::Origin;
use crate::inflight::{PairStatus, QueueKind, Quiescent, RawPair, ReceiveQueue, SendQueue, SharedCore, Status};
use crate::provider::reviewed::Teardown;
use crate::sys::{self, ibv_qp_attr_mask as Mask};
use crate::trace;
use crate::types::{Psn, Qpn, ReadDepth};
use crate::verb_error::{VerbError, note_leak};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A queue pair without its types: a few words that each transition moves.
pub(crate) struct UntypedPair {
    // Rust drops these fields in this order. `send` and `receive` hold the rights to post, so they are dropped before
    // the core. The drop of the core destroys the pair, and this works only when no right to post is left.
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
    /// # Invariants
    ///
    /// 0. The only reference to the core. [`QueuePair::split`](super::QueuePair::split) moves the parts of this struct
    ///    into two halves, and `join` rebuilds it.
    pub(crate) core: Arc<PairCore>,
}

/// The part of a pair that both halves share. It is dropped with the last half.
pub(crate) struct PairCore {
    pub(crate) raw: RawPair,
    /// `None` after the pair was destroyed, handed to its poller, or leaked.
    pub(crate) places: Option<Places>,
    pub(crate) status: Arc<PairStatus>,
    /// How many ledgers from before a reset may still have completions in a completion queue.
    pub(crate) unsettled: Arc<AtomicU32>,
    pub(crate) limits: Limits,
    pub(crate) local: LocalPort,
    // `PairCore::drop` ends the pair before any field is dropped. The fields below are then dropped in this order: the
    // domain outlives all the others.
    pub(crate) send_queue: Arc<CqInner>,
    pub(crate) receive_queue: Arc<CqInner>,
    /// The shared receive queue, if the pair has no receives of its own.
    pub(crate) shared: Option<Arc<SharedCore>>,
    pub(crate) domain: Arc<DomainInner>,
}

/// Why a pair was not destroyed.
pub(crate) struct UndestroyedPair {
    pub(crate) source: VerbError,
    /// Whether the pair may be half-destroyed. It was then leaked, with everything that it needs.
    pub(crate) is_lost: bool,
}

impl UntypedPair {
    /// The core. Never `None` while the pair is whole (0): only halves of a pair share their core.
    pub(crate) fn core_mut(&mut self) -> Option<&mut PairCore> {
        Arc::get_mut(&mut self.core)
    }

    /// Whether only the poller of the pair may destroy it. If so, dropping the pair hands it to the poller.
    pub(crate) fn is_left_to_poller(&mut self) -> bool {
        self.core_mut().is_some_and(|core| core.ends_by_poller() && core.places.is_some())
    }

    /// Destroys the pair, whose work queues then take no posts. `poller` is its only poller. Returns whether the
    /// completion queue may be polled afterwards. It may not if [only the poller may destroy the
    /// pair](PairCore::ends_by_poller). Then this stops the poller first: otherwise the drop of the queue could still
    /// poll, for other pairs that have departed.
    pub(crate) fn destroy_with<B>(&mut self, poller: &mut Poller<B>) -> Result<bool, UndestroyedPair> {
        let may_poll = !self.is_left_to_poller();
        if !may_poll {
            poller.stop();
        }
        self.destroy_now()?;
        Ok(may_poll)
    }

    /// Destroys the pair, whose work queues then take no posts. If the pair [is left to its
    /// poller](Self::is_left_to_poller), the caller has stopped the poller.
    pub(crate) fn destroy_now(&mut self) -> Result<(), UndestroyedPair> {
        let Self { send, receive, core } = self;
        match Arc::get_mut(core) {
            Some(core) => core.destroy_now(Some((send, receive))),
            None => Err(UndestroyedPair { source: VerbError::new("ibv_destroy_qp", libc::EBUSY), is_lost: false }),
        }
    }

    /// Moves the pair to Reset. If requests were in flight, its work queues get new ledgers.
    pub(crate) fn reset_and_renew(&mut self) -> Result<(), TransitionFailure> {
        let verb = |source| TransitionFailure::Verb { to: Reset::NAME, source };
        let drained = self.send.outstanding() == 0 && self.receive.outstanding() == 0;
        let Some(core) = Arc::get_mut(&mut self.core) else {
            return Err(verb(VerbError::new("ibv_modify_qp", libc::EBUSY)));
        };
        core.can_be_reset()?;
        let psn = core.psn_after_reset().map_err(verb)?;
        // `drained` says nothing about shared receives: the device does not tell how many of them it has started to
        // fill for this pair.
        if drained && core.shared.is_none() {
            // All requests have come out of the poller, so no completion queue holds a completion of this pair. The
            // pair can keep its places.
            reset_in_turn(&core.raw, &core.domain).map_err(verb)?;
            core.local.psn = psn;
            core.status.renew();
            return Ok(());
        }
        // The pair gets new places. Completions from before the reset name the old places, so they are never taken for
        // completions of new requests.
        let Some(old) = &core.places else { return Err(TransitionFailure::NoSlot) };
        let Some(send) = core.send_queue.renew(QueueKind::Send, &old.send) else {
            return Err(TransitionFailure::NoSlot);
        };
        let Some(receive) = core.receive_queue.renew(QueueKind::Receive, &old.receive) else {
            core.send_queue.release(send, false);
            return Err(TransitionFailure::NoSlot);
        };
        let reset = reset_in_turn(&core.raw, &core.domain).and_then(|quiescent| {
            // `quiescent` is never `None`: `can_be_reset` has checked that pairs can be reset with this provider, and
            // such a reset returns the proof.
            quiescent.ok_or(VerbError::new("ibv_modify_qp", libc::EIO))
        });
        let quiescent = match reset {
            Ok(quiescent) => quiescent,
            Err(error) => {
                core.send_queue.release(send, false);
                core.receive_queue.release(receive, false);
                return Err(verb(error));
            }
        };
        core.local.psn = psn;
        let places = Places { send, receive };
        let origin = Origin::new(core.status.qpn, core.raw.is_of_datagrams());
        let takes_unsignalled = core.domain.context.promises().sends_may_be_unsignalled();
        let ledgers = PairLedgers::new(&core.domain.ledgers, &places, &core.limits, origin, takes_unsignalled);
        core.status = core.status.after_reset(ledgers.detours());
        let (send, receive) = ledgers.attach(&core.send_queue, &core.receive_queue, &core.status);
        self.send.renew(send, Arc::clone(&core.status));
        self.receive.renew(receive, Arc::clone(&core.status));
        core.unsettled.fetch_add(2, Ordering::Relaxed);
        if let Some(old) = core.places.replace(places) {
            core.orphan(old.send, old.receive, Some(&core.unsettled), &quiescent);
        }
        Ok(())
    }
}

impl PairCore {
    pub(crate) fn modify(&self, mut modify: Modify) -> Result<(), VerbError> {
        self.raw.modify(&mut modify.attributes, modify.mask)?;
        if modify.mask.0 & Mask::IBV_QP_STATE.0 != 0 {
            trace::pair_moved(self.qpn().value(), &DeviceState::from_raw(modify.attributes.qp_state));
        }
        Ok(())
    }

    /// Checks that a reset of the pair proves that the device is done with its requests, and that the pair can be used
    /// again.
    fn can_be_reset(&self) -> Result<(), TransitionFailure> {
        if self.domain.context.is_iwarp() {
            return Err(TransitionFailure::NotOnIwarp(NotOnIwarp::Reset));
        }
        self.can_be_used_again()?;
        let promises = self.domain.context.promises();
        // If `teardown` is not `Anytime`, a reset loses completions of shared receives.
        if self.shared.is_some() && promises.teardown != Teardown::Anytime {
            return Err(TransitionFailure::ResetShared { provider: promises.name });
        }
        Ok(())
    }

    /// Checks that the pair is like a new one when it leaves Reset or Send Queue Error.
    pub(crate) fn can_be_used_again(&self) -> Result<(), TransitionFailure> {
        let promises = self.domain.context.promises();
        if promises.pairs_can_be_reset { Ok(()) } else { Err(TransitionFailure::UsedOnce { provider: promises.name }) }
    }

    /// Whether only the poller may destroy the pair, because the provider allows no destroy at another time.
    pub(crate) fn ends_by_poller(&self) -> bool {
        self.domain.context.promises().leaves_to_poller(self.shared.is_some())
    }

    /// The first packet sequence number after a reset. It lies ahead of the number that the device would send next.
    /// Some devices report 0 for that number in Error. Then the new number lies ahead of the first number that this
    /// pair sent since its last reset.
    ///
    /// If the device does not tell its number, this fails: a wrong guess could make old packets valid.
    fn psn_after_reset(&self) -> Result<Psn, VerbError> {
        let next = self.query(Mask::IBV_QP_SQ_PSN)?.sq_psn;
        Ok(if next == 0 { self.local.psn } else { Psn::clamped(next) }.after_reset())
    }

    pub(crate) fn query(&self, mask: Mask) -> Result<sys::ibv_qp_attr, VerbError> {
        self.raw.query(mask)
    }

    /// As [`UntypedPair::destroy_now`]. `queues` are the work queues of the pair; `None` if they were dropped.
    fn destroy_now(&mut self, queues: Option<(&mut SendQueue, &mut ReceiveQueue)>) -> Result<(), UndestroyedPair> {
        let dead = |source| UndestroyedPair { source, is_lost: true };
        if self.places.is_none() {
            return Err(dead(VerbError::new("ibv_destroy_qp", libc::EIO)));
        }
        let quiescent = match destroy(&mut self.raw, &self.domain, &self.status, queues) {
            Ok(quiescent) => quiescent,
            Err(source) => {
                let is_lost = !self.domain.context.promises().destroy_may_be_retried;
                if is_lost {
                    self.leak();
                }
                return Err(UndestroyedPair { source, is_lost });
            }
        };
        trace::pair_gone(self.qpn().value());
        if let Some(Places { send, receive }) = self.places.take() {
            self.orphan(send, receive, None, &quiescent);
        }
        Ok(())
    }

    /// Hands the pair to its poller, which destroys it.
    fn depart(&mut self) {
        let Some(places) = self.places.take() else { return };
        let (status, domain) = (Arc::clone(&self.status), Arc::clone(&self.domain));
        let sends_on = (!Arc::ptr_eq(&self.send_queue, &self.receive_queue)).then(|| Arc::clone(&self.send_queue));
        trace::pair_gone(self.qpn().value());
        let raw = self.raw.take();
        let departing = DepartingPair { raw, places, sends_on, status, _shared: self.shared.clone(), domain };
        // `flush` moves the pair to Error, so that the device flushes the requests in flight. An error is ignored: the
        // poller calls `flush_again` from time to time, as long as requests are in flight or may come from a shared
        // receive queue. At the latest, the drop of the completion queue destroys the pair.
        let _ = departing.flush();
        self.receive_queue.depart(Box::new(departing));
    }

    /// Leaks everything that the device may still use.
    fn leak(&mut self) {
        self.status.poison();
        self.send_queue.note_leaked();
        if !Arc::ptr_eq(&self.send_queue, &self.receive_queue) {
            self.receive_queue.note_leaked();
        }
        mem::forget(self.places.take());
        mem::forget(Arc::clone(&self.send_queue));
        mem::forget(Arc::clone(&self.receive_queue));
        mem::forget(self.shared.clone());
        mem::forget(self.raw.take());
        mem::forget(Arc::clone(&self.domain));
    }

    /// Tells the pollers that the device is done with the requests of these places.
    fn orphan(&self, send: Place, receive: Place, keeps_lease: Option<&Arc<AtomicU32>>, quiescent: &Quiescent) {
        for (queue, place) in [(&self.send_queue, send), (&self.receive_queue, receive)] {
            queue.orphan(Orphan { place, keeps_lease: keeps_lease.cloned(), quiescent: quiescent.clone() });
        }
    }

    /// How many handles of `queue` exist besides the pair's two and its poller's one. `None` if the pair completes on
    /// another queue. If the answer is 0, no other handle can appear later: handles are cloned from handles.
    pub(crate) fn others_on(&self, queue: &Arc<CqInner>) -> Option<usize> {
        let is_ours = Arc::ptr_eq(&self.send_queue, queue) && Arc::ptr_eq(&self.receive_queue, queue);
        is_ours.then(|| Arc::strong_count(queue).saturating_sub(3))
    }

    /// Whether all completions from before the last reset have been polled.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire) == 0
    }

    /// Checks that the device allows that many reads and atomics at once, as responder and as requester. Not every
    /// device checks this.
    pub(crate) fn has_depths(
        &self,
        responder: Option<ReadDepth>,
        initiator: Option<ReadDepth>,
    ) -> Result<(), TransitionFailure> {
        let device = self.domain.context.limits();
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

    /// Notes that the pair was moved to Error, so that posts are refused.
    pub(crate) fn note_broken(&self) {
        self.status.note_failure(QueueKind::Receive, Status::Flushed);
    }

    /// Whether posts are refused: a request failed, or may have been half posted.
    pub(crate) fn is_broken(&self) -> bool {
        [QueueKind::Send, QueueKind::Receive].into_iter().any(|side| self.status.is_broken(side))
    }

    /// Whether no more receives are posted. (A failed send of an unreliable pair stops only its sends.)
    #[cfg(feature = "aio")]
    pub(crate) fn has_stopped_receiving(&self) -> bool {
        self.status.is_broken(QueueKind::Receive)
    }

    pub(crate) fn first_failure(&self) -> Option<Status> {
        self.status.first_failure()
    }

    /// Forgets failed sends, so that the pair takes sends again. No earlier send may be in flight.
    pub(crate) fn forget_failures(&self) {
        self.status.renew_sends();
    }

    /// Whether the pair refuses posts until it is reset or destroyed.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.status.is_poisoned()
    }

    /// Whether the pair may have a request that only the end of the pair brings out: one whose post was uncertain and
    /// that the device never got, or one that was posted after the device had moved the pair to Error.
    pub(crate) fn may_keep_requests(&self) -> bool {
        self.is_poisoned() || !self.domain.context.promises().flushes_late_posts
    }
}

/// Runs when a pair is dropped, or the last of its halves. Where the pair may be destroyed now, this calls
/// `pair_end::destroy`, and the poller then returns what was in flight (`poller::gone`). Elsewhere `depart` leaves the
/// pair to the poller, which destroys it later (`completion::departing`).
impl Drop for PairCore {
    fn drop(&mut self) {
        if self.places.is_none() {
            return;
        }
        if self.ends_by_poller() {
            return self.depart();
        }
        if let Err(UndestroyedPair { source, is_lost }) = self.destroy_now(None) {
            note_leak("a queue pair", source);
            if !is_lost {
                self.leak();
            }
        }
    }
}
