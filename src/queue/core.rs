//! What is behind a queue pair, whatever its state: the raw pair, its places on the completion queues, and its lives.
#![allow(unsafe_code, reason = "owns the raw queue pair")]

use super::attr::{Limits, Modify, PeerPath, UnreliableRtrAttributes};
use super::error::TransitionFailure;
use super::post::{ReceiveQueue, SendQueue};
use super::shared::SharedCore;
use super::state::{Reset, State};
use crate::completion::{Attached, CqInner, Departing, Orphan, Place, SharedReceiver};
use crate::device::{GidEntry, LinkLayer, Port};
use crate::domain::Blocks;
use crate::domain::DomainInner;
use crate::error::{VerbError, note_leak};
use crate::inflight::ledger::{Detour, Origin, Poster, Retirer, ledger};
use crate::inflight::{Entry, PairStatus, QueueKind, Status, polling_lock};
use crate::memory::WindowCore;
use crate::provider::reviewed::Teardown;
use crate::sys::{self, ibv_qp_attr_mask as Mask, ibv_qp_state as raw_state};
use crate::types::{Gid, Mtu, PortNumber, Psn, Qpn, ReadDepth};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
use std::{mem, ptr::NonNull};

/// A queue pair without its types: a few words, which go from state to state.
pub(crate) struct Inner {
    pub(crate) send: SendQueue,
    /// # Invariants
    ///
    /// 0. The only reference: halves are made from these parts, and become them again.
    pub(crate) core: Arc<Core>,
    pub(crate) receive: ReceiveQueue,
}

/// What both halves of a pair need, and what ends with the last of them.
pub(crate) struct Core {
    /// # Invariants
    ///
    /// 0. Ours, and alive while `places` is `Some`.
    pub(crate) body: Body,
    pub(crate) places: Option<Places>,
    pub(crate) status: Arc<PairStatus>,
    /// How many ledgers of an earlier life may still have completions in a queue.
    pub(crate) unsettled: Arc<AtomicU32>,
    pub(crate) limits: Limits,
    pub(crate) local: Local,
    // Dropped in this order, after the pair is destroyed.
    pub(crate) send_queue: Arc<CqInner>,
    pub(crate) receive_queue: Arc<CqInner>,
    /// Where its receives come from, if it has none of its own.
    pub(crate) shared: Option<Arc<SharedCore>>,
    pub(crate) domain: Arc<DomainInner>,
}

/// The raw pair, with what has to end before it. Each method is given its domain.
pub(crate) struct Body {
    /// # Invariants
    ///
    /// 0. Came from the domain's provider, and is alive for as long as its owner says.
    pub(crate) raw: NonNull<sys::ibv_qp>,
    /// What few pairs have.
    pub(crate) rare: Option<Box<Rare>>,
}

// SAFETY: control verbs on a pair may be called from any thread.
unsafe impl Send for Body {}
// SAFETY: what changes the pair takes `&mut`.
unsafe impl Sync for Body {}

/// What has to end before the pair can.
#[derive(Default)]
pub(crate) struct Rare {
    /// Of datagrams: the multicast groups that the pair is a member of. A member cannot be destroyed.
    groups: Vec<(Gid, u16)>,
    /// Windows that serve this pair alone. They are freed before it: destroying a pair with a bound one hangs on some devices.
    windows: Vec<Arc<WindowCore>>,
}

pub(crate) struct Places {
    pub(crate) send: Place,
    pub(crate) receive: Place,
}

/// How peers reach the pair; set when it enters Init.
#[derive(Clone, Copy)]
pub(crate) struct Local {
    pub(crate) port: PortNumber,
    pub(crate) gid: Option<GidEntry>,
    pub(crate) lid: u16,
    pub(crate) mtu: Mtu,
    pub(crate) link_layer: LinkLayer,
    /// How many rows the port's table of partition keys has.
    pub(crate) pkey_rows: u16,
    pub(crate) psn: Psn,
}

/// A pair that the program has let go of, and that the poller of its receives destroys.
struct Departure {
    body: Body,
    places: Places,
    /// Where its sends complete, if elsewhere. (Two completion queues that each wait for a pair which sends on the other keep
    /// each other alive until one of them was polled.)
    sends_on: Option<Arc<CqInner>>,
    status: Arc<PairStatus>,
    /// Ends after the pair.
    _shared: Option<Arc<SharedCore>>,
    domain: Arc<DomainInner>,
}

impl Departing for Departure {
    fn slots(&self) -> [Option<usize>; 2] {
        let Places { send, receive } = &self.places;
        // Only where pairs must be drained, sends are waited for: elsewhere they may be unsignalled, and never complete.
        let waits_for_sends = self.sends_on.is_none() && self.domain.context.promises().teardown == Teardown::Polled;
        [waits_for_sends.then(|| send.slot()), Some(receive.slot())]
    }

    fn is_on_shared(&self) -> bool {
        self.places.receive.shared.is_some()
    }

    fn flush_again(&self) {
        // Where it fails, the pair is destroyed with its completion queue.
        let _ = self.body.modify(&self.domain, Modify::to(raw_state::IBV_QPS_ERR));
    }

    fn destroy(&mut self) -> Result<(), VerbError> {
        self.body.destroy(&self.domain, &self.status)
    }

    fn into_places(self: Box<Self>) -> [Option<Place>; 2] {
        clear_peers(&self.status);
        let Places { send, receive } = self.places;
        match self.sends_on {
            None => [Some(send), Some(receive)],
            Some(queue) => {
                queue.orphan(Orphan { place: send, keeps_lease: None });
                [None, Some(receive)]
            }
        }
    }

    fn leak(self: Box<Self>, error: VerbError) {
        note_leak("a queue pair", error);
        mem::forget(self);
    }
}

/// Why a pair was not destroyed.
pub(crate) struct Undestroyed {
    pub(crate) source: VerbError,
    /// The device may have left it half-dead: it was leaked, with all that it needs.
    pub(crate) is_lost: bool,
}

impl Inner {
    /// The core, if no half of the pair is around; there is none whose pair is whole (0).
    pub(crate) fn unsplit(&mut self) -> Option<&mut Core> {
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
        // How many shared receives it has begun is not known.
        if drained && core.shared.is_none() {
            // Every request has come out, so no completion of this life is left in a queue.
            core.to_reset().map_err(verb)?;
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
        if let Err(error) = core.to_reset() {
            core.send_queue.release(send, false);
            core.receive_queue.release(receive, false);
            return Err(verb(error));
        }
        core.local.psn = psn;
        let places = Places { send, receive };
        let origin = Origin::new(core.status.qpn, core.status.peers.is_some());
        let takes_unsignalled = core.domain.context.promises().sends_may_be_unsignalled();
        let ledgers = Ledgers::new(&core.domain.ledgers, &places, &core.limits, origin, takes_unsignalled);
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

impl Body {
    fn modify(&self, domain: &DomainInner, mut modify: Modify) -> Result<(), VerbError> {
        // SAFETY: alive (0).
        unsafe { domain.context.provider.modify_qp(self.raw, &mut modify.attributes, modify.mask) }
    }

    /// To Reset, twice. In the first call soft-RoCE (6.12 at least) notes where its send queue begins before it empties the queue: in
    /// its next life the pair would send what it finds from there on, and read memory that has come back to the program. And
    /// a request that fails in that moment takes the pair to Error behind the call. The second call finds nothing in flight.
    ///
    /// The specification has Reset follow on every state, itself included. If another provider refuses the second, the first has
    /// succeeded.
    fn to_reset(&self, domain: &DomainInner) -> Result<(), VerbError> {
        // SAFETY: alive (0).
        let _turn = unsafe { turn_for(domain, self.raw) };
        self.modify(domain, Modify::to(raw_state::IBV_QPS_RESET))?;
        match self.modify(domain, Modify::to(raw_state::IBV_QPS_RESET)) {
            Err(error) if domain.context.promises().quirks.reset_twice => Err(error),
            _ => Ok(()),
        }
    }

    fn detach(&mut self, domain: &DomainInner, group: Gid, lid: u16) -> Result<(), VerbError> {
        // SAFETY: alive (0).
        unsafe { domain.context.provider.detach_mcast(self.raw, &sys::ibv_gid { raw: group.0 }, lid) }?;
        self.rare.iter_mut().for_each(|rare| rare.groups.retain(|&member| member != (group, lid)));
        Ok(())
    }

    /// Destroys the pair, and before it what belongs to it.
    fn destroy(&mut self, domain: &DomainInner, status: &PairStatus) -> Result<(), VerbError> {
        while let Some(&(group, lid)) = self.rare.as_ref().and_then(|rare| rare.groups.last()) {
            self.detach(domain, group, lid)?;
        }
        self.end_windows(domain, status)?;
        let context = &domain.context;
        // SAFETY: alive (0).
        context.objects.end(self.raw, || unsafe { context.provider.destroy_qp(self.raw) })
    }

    /// Frees the windows of the pair, bound or not. No request names one any more: the pair is reset first.
    fn end_windows(&mut self, domain: &DomainInner, status: &PairStatus) -> Result<(), VerbError> {
        let Some(Rare { windows, .. }) = self.rare.as_deref_mut() else { return Ok(()) };
        windows.retain(|window| !window.has_ended());
        if windows.is_empty() {
            return Ok(());
        }
        // From here on nothing may be posted, whatever becomes of the rest.
        status.poison();
        self.to_reset(domain)?;
        self.rare.iter().flat_map(|rare| &rare.windows).try_for_each(|window| window.dealloc())
    }
}

impl Core {
    /// Whether verbs may use the pair: not if it was destroyed, or leaked by a destroy that failed.
    fn alive(&self, verb: &'static str) -> Result<(), VerbError> {
        if self.places.is_some() { Ok(()) } else { Err(VerbError::new(verb, libc::EIO)) }
    }

    pub(crate) fn modify(&self, modify: Modify) -> Result<(), VerbError> {
        self.alive("ibv_modify_qp")?;
        self.body.modify(&self.domain, modify)
    }

    fn to_reset(&self) -> Result<(), VerbError> {
        self.alive("ibv_modify_qp")?;
        self.body.to_reset(&self.domain)
    }

    /// Whether a reset of the pair, with or without requests in flight, is proof that the device is done with them.
    fn can_be_reset(&self, drained: bool, sends: u32, receives: u32) -> Result<(), TransitionFailure> {
        let row = self.domain.context.promises();
        // Nobody knows which shared receives it has begun.
        if self.shared.is_some() && (row.teardown != Teardown::Anytime || !row.reset_is_barrier) {
            return Err(TransitionFailure::ResetShared { provider: row.name });
        }
        if drained || row.reset_is_barrier {
            return Ok(());
        }
        Err(TransitionFailure::ResetInFlight { sends, receives, provider: row.name })
    }

    /// Whether its poller is to destroy it.
    pub(crate) fn ends_by_poller(&self) -> bool {
        self.domain.context.promises().leaves_to_poller(self.shared.is_some())
    }

    /// What the next life's packets are to begin with. Where the device does not say what it would send next, as it should
    /// (some say 0 in Error), it is taken for what it sent first.
    fn psn_of_next_life(&self) -> Psn {
        let next = self.query(Mask::IBV_QP_SQ_PSN).map_or(0, |now| now.sq_psn);
        if next == 0 { self.local.psn } else { Psn::clamped(next) }.of_next_life()
    }

    pub(crate) fn attach(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.alive("ibv_attach_mcast")?;
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.attach_mcast(self.body.raw, &sys::ibv_gid { raw: group.0 }, lid) }?;
        self.body.rare.get_or_insert_default().groups.push((group, lid));
        Ok(())
    }

    pub(crate) fn detach(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.alive("ibv_detach_mcast")?;
        self.body.detach(&self.domain, group, lid)
    }

    pub(crate) fn query(&self, mask: Mask) -> Result<sys::ibv_qp_attr, VerbError> {
        self.alive("ibv_query_qp")?;
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.query_qp(self.body.raw, mask) }
    }

    /// Destroys the pair, or lets its poller do so.
    pub(crate) fn destroy(&mut self) -> Result<(), Undestroyed> {
        if self.ends_by_poller() && self.places.is_some() {
            self.depart();
            return Ok(());
        }
        self.destroy_now()
    }

    /// Destroys the pair. Where [its poller does that](Self::ends_by_poller), the caller must be that poller, and must not poll again
    /// unless nothing of the pair is in flight.
    pub(crate) fn destroy_now(&mut self) -> Result<(), Undestroyed> {
        let dead = |source| Undestroyed { source, is_lost: true };
        self.alive("ibv_destroy_qp").map_err(dead)?;
        if let Err(source) = self.body.destroy(&self.domain, &self.status) {
            let is_lost = !self.domain.context.promises().destroy_may_be_retried;
            if is_lost {
                self.leak();
            }
            return Err(Undestroyed { source, is_lost });
        }
        if let Some(Places { send, receive }) = self.places.take() {
            self.orphan(send, receive, None);
        }
        clear_peers(&self.status);
        Ok(())
    }

    /// Lets the poller destroy the pair.
    fn depart(&mut self) {
        let Some(places) = self.places.take() else { return };
        let body = Body { raw: self.body.raw, rare: self.body.rare.take() };
        let (status, domain) = (Arc::clone(&self.status), Arc::clone(&self.domain));
        let sends_on = (!Arc::ptr_eq(&self.send_queue, &self.receive_queue)).then(|| Arc::clone(&self.send_queue));
        let departure = Departure { body, places, sends_on, status, _shared: self.shared.clone(), domain };
        // What is in flight is flushed; where it is not, the pair is destroyed with its completion queue.
        departure.flush_again();
        self.receive_queue.depart(Box::new(departure));
    }

    /// Keeps all that the device may go on to use, for ever.
    fn leak(&mut self) {
        self.status.poison();
        mem::forget(self.places.take());
        mem::forget(self.status.peers.clone());
        mem::forget(Arc::clone(&self.send_queue));
        mem::forget(Arc::clone(&self.receive_queue));
        mem::forget(self.shared.clone());
        mem::forget(self.body.rare.take());
        mem::forget(Arc::clone(&self.domain));
    }

    /// The pair, to make and to compare what is of it alone.
    pub(crate) fn raw(&self) -> NonNull<sys::ibv_qp> {
        self.body.raw
    }

    /// Frees this window before the pair.
    pub(crate) fn keep_window(&mut self, window: Arc<WindowCore>) {
        let windows = &mut self.body.rare.get_or_insert_default().windows;
        windows.retain(|window| !window.has_ended());
        windows.push(window);
    }

    /// Tells the pollers that the device is done with what these places have in flight.
    fn orphan(&self, send: Place, receive: Place, keeps_lease: Option<&Arc<AtomicU32>>) {
        for (queue, place) in [(&self.send_queue, send), (&self.receive_queue, receive)] {
            queue.orphan(Orphan { place, keeps_lease: keeps_lease.cloned() });
        }
    }

    /// How many handles of `queue` there are besides the pair's own two and that of its poller; `None` if the pair completes
    /// elsewhere. Where there are none, none can come: handles are made from handles.
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
        let context = &self.domain.context;
        // SAFETY: open as long as we hold it.
        unsafe { context.provider.query_device(context.raw) }
    }

    /// Whether the device has so many reads and atomics at once as responder and as requester. Not every device looks. What
    /// a device that says nothing makes of them, it says then.
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

    /// The pair sends again; no send of before is in flight.
    pub(crate) fn forget_failures(&self) {
        self.status.renew_sends();
    }

    /// Whether only reset or destroy brings it on.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.status.is_poisoned()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.places.is_none() {
            return;
        }
        if let Err(Undestroyed { source, is_lost }) = self.destroy() {
            note_leak("a queue pair", source);
            if !is_lost {
                self.leak();
            }
        }
    }
}

/// Lets the address handles of a destroyed pair go: pollers may know its status for long.
fn clear_peers(status: &PairStatus) {
    if let Some(peers) = &status.peers {
        // SAFETY: destroyed; and whoever could post had the core, which has ended.
        unsafe { peers.clear() };
    }
}

/// The turn of the pair's completion queue, where no poll may be under way while a pair is reset or destroyed. It has one queue there.
///
/// # Safety
///
/// The pair is alive.
pub(crate) unsafe fn turn_for(domain: &DomainInner, pair: NonNull<sys::ibv_qp>) -> Option<MutexGuard<'static, ()>> {
    // SAFETY: alive (caller).
    (domain.context.promises().teardown == Teardown::Polled).then(|| polling_lock(unsafe { (*pair.as_ptr()).send_cq }))
}

/// The ledgers of one life of a pair, on their way to who posts and who polls.
pub(crate) struct Ledgers {
    send: (Poster<Entry>, Retirer<Entry>),
    receive: (Poster<Entry>, Retirer<Entry>),
    /// Of a pair that receives from a shared receive queue: what its poller posts to, for each completion.
    brought: Option<SharedReceiver>,
}

impl Ledgers {
    /// Where `retires_prefix`, the completion of a send ends the sends before it. That of a receive never does: each has its own.
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
            // Nobody posts to that of the pair.
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

    /// Tells the pollers of the two queues; gives the ends that post.
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

impl Local {
    /// Before Init, when nobody asks.
    pub(crate) const UNKNOWN: Self = Self {
        port: match PortNumber::new(1) {
            Ok(port) => port,
            Err(_) => panic!("1 is a port"),
        },
        gid: None,
        lid: 0,
        mtu: Mtu::Bytes256,
        link_layer: LinkLayer::Unspecified,
        pkey_rows: 0,
        psn: match Psn::new(0) {
            Ok(psn) => psn,
            Err(_) => panic!("0 is a PSN"),
        },
    };

    /// The row of the GID table by which packets leave.
    pub(crate) fn row(&self) -> u8 {
        self.gid.map_or(0, |row| row.index())
    }

    /// Whether the port has that row of partition keys; not every device looks. Row 0 is there also where there is no table.
    pub(crate) fn has_pkey(&self, asked: u16) -> Result<(), TransitionFailure> {
        let rows = self.pkey_rows;
        if asked == 0 || asked < rows { Ok(()) } else { Err(TransitionFailure::PkeyIndex { asked, rows }) }
    }

    /// Whether a connection goes there; no device looks at the number.
    pub(crate) fn connects_to(&self, attr: &UnreliableRtrAttributes) -> Result<(), TransitionFailure> {
        if attr.destination == Qpn::MULTICAST {
            return Err(TransitionFailure::Multicast { number: attr.destination });
        }
        self.reaches(&attr.path, attr.path_mtu)
    }

    /// Whether the port gets packets of that size there.
    pub(crate) fn reaches(&self, path: &PeerPath, path_mtu: Mtu) -> Result<(), TransitionFailure> {
        path.check()?;
        if self.link_layer == LinkLayer::Ethernet && path.gid.is_none() {
            return Err(TransitionFailure::NoPeerGid);
        }
        if path_mtu > self.mtu {
            return Err(TransitionFailure::Mtu { asked: path_mtu, most: self.mtu });
        }
        Ok(())
    }

    /// The same on that port.
    pub(crate) fn on(self, port: &Port) -> Self {
        Self {
            psn: self.psn,
            port: port.number(),
            gid: port.gid(),
            lid: port.lid(),
            mtu: port.active_mtu(),
            link_layer: port.link_layer(),
            pkey_rows: port.pkey_rows(),
        }
    }
}
