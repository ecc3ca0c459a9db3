//! The queue pair.

use super::AnyQueuePair;
use super::attributes::{ConnectAttributes, Limits, Modify, PeerPath, RtrAttributes, RtsAttributes};
use super::error::{CreateError, DestroyError, DrainFailure, TransitionError, TransitionFailure, Undrained};
use super::halves::{ReceiveHalf, SendHalf};
use super::local_port::LocalPort;
use super::request::Inline;
use super::state::{
    DeviceState, Errored, GoesTo, Init, OnPort, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, State,
};
use super::transport::{Connected, Init as _, OnShared, OwnReceives, Reliable, ReliableConnection, Transport, code};
use super::untyped::{UndestroyedPair, UntypedPair};
use crate::completion::{Completion, CqInner, Poller};
use crate::device::LinkLayer;
use crate::device::iwarp::NotOnIwarp;
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainInner};
use crate::inflight::SharedCore;
use crate::inflight::{Status, WorkRequest};
use crate::queue::Endpoint;
use crate::sys::{ibv_qp_attr_mask as Mask, ibv_qp_state as raw_state, ibv_qp_type};
use crate::types::{Psn, Qpn, ReadDepth};
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, thread};

/// A queue pair of domain `B`, in state `S`, of transport `T`. Seven words.
///
/// A transition consumes the pair and returns one of the next type, or an error with the unchanged pair; see [`State`]
/// for the diagram. Posting moves memory into the pair; the poller of its completion queue gives the memory back.
///
/// Dropping a pair destroys it, `ibv_destroy_qp(3)`. Requests in flight come out of the poller as failures with
/// [`Status::Destroyed`]. If the device refuses to destroy the pair, everything that the device could still touch stays
/// allocated for the life of the process.
///
/// # Rules
///
/// The compiler enforces each rule; programs that break them are in `ui-tests/queue`.
///
/// - Q1: a queue pair goes from state to state only as the specification has it.
/// - Q2: a transition takes exactly the attributes that it requires.
/// - Q3: a send work request is posted in Ready To Send only.
/// - Q4: a receive is posted in Init, Ready To Receive, Ready To Send and Send Queue Drain only.
/// - Q5: states and their capabilities are sealed.
/// - Q6: a transition takes the pair; only its result goes on.
/// - Q7: memory in flight is gone until its completion.
/// - Q8: the device writes only to memory that one handle owns.
/// - Q9: an operation needs the right that the peer granted.
/// - Q10: only sends and writes carry an immediate.
/// - Q11: one thread posts to a work queue at a time.
/// - Q12: a lent batch settles on state that its closure cannot reach.
/// - Q13: work ids come from posting.
/// - Q14: which operation exists on which transport is a matter of types.
#[doc(alias = "ibv_qp")]
#[must_use = "dropping it destroys the queue pair"]
pub struct QueuePair<B, S = ReadyToSend, T = ReliableConnection> {
    pub(crate) inner: UntypedPair,
    brand: Branded<B>,
    types: PhantomData<fn() -> (S, T)>,
}
static_assertions::assert_eq_size!(QueuePair<()>, Option<QueuePair<()>>, [usize; 7]);
static_assertions::assert_impl_all!(QueuePair<()>: Send, Sync);
static_assertions::assert_not_impl_any!(QueuePair<()>: Clone, Copy);

impl<B: Brand, T: Transport> QueuePair<B, Reset, T> {
    pub(crate) fn create(
        domain: &Arc<DomainInner>,
        sends: &Arc<CqInner>,
        receives: &Arc<CqInner>,
        limits: &Limits,
    ) -> Result<Self, CreateError> {
        Ok(Self::assume_state(UntypedPair::create::<B, T>(domain, sends, receives, limits, None)?))
    }
}

impl<B: Brand, T: OwnReceives> QueuePair<B, Reset, OnShared<T>> {
    pub(super) fn create_on_shared(
        shared: &Arc<SharedCore>,
        sends: &Arc<CqInner>,
        receives: &Arc<CqInner>,
        limits: &Limits,
    ) -> Result<Self, CreateError> {
        let limits = Limits { receives: 0, ..*limits };
        Ok(Self::assume_state(UntypedPair::create::<B, T>(&shared.domain, sends, receives, &limits, Some(shared))?))
    }
}

impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// Gives the pair the type of its state. The caller has just seen a `modify` succeed, or returns the pair in the
    /// state that it had.
    pub(super) fn assume_state(inner: UntypedPair) -> Self {
        Self { inner, brand: PhantomData, types: PhantomData }
    }

    /// Calls `ibv_modify_qp`, and returns the pair in the new state, or the error with the unchanged pair.
    pub(super) fn transition<S2: State>(self, modify: Modify) -> Result<QueuePair<B, S2, T>, TransitionError<Self>> {
        match self.inner.core.modify(modify) {
            Ok(()) => Ok(QueuePair::assume_state(self.inner)),
            Err(source) => self.fail(TransitionFailure::Verb { to: S2::NAME, source }),
        }
    }

    /// Refuses what an iWARP device cannot do, if the pair is on one.
    fn not_on_iwarp(&self, what: NotOnIwarp) -> Result<(), TransitionFailure> {
        if self.inner.core.domain.context.is_iwarp() { Err(TransitionFailure::NotOnIwarp(what)) } else { Ok(()) }
    }

    pub(super) fn fail<Q>(self, source: TransitionFailure) -> Result<Q, TransitionError<Self>> {
        Err(TransitionError { queue_pair: self, source })
    }

    /// The number of the pair, unique on its device.
    #[doc(alias = "qp_num")]
    pub fn number(&self) -> Qpn {
        self.inner.core.qpn()
    }

    /// The first packet sequence number that this side sends. It is random; after a reset it lies ahead of all numbers
    /// that were sent before.
    #[doc(alias = "sq_psn")]
    pub fn psn(&self) -> Psn
    where
        S: OnPort,
    {
        self.inner.core.local.psn
    }

    /// The data that a peer needs to connect to this pair: send it the bytes of this record.
    pub fn endpoint(&self) -> Endpoint
    where
        S: OnPort,
    {
        let LocalPort { gid, lid, mtu, psn, .. } = self.inner.core.local;
        Endpoint::new(self.number(), psn, gid.map(|row| row.gid), lid, mtu)
    }

    /// The limits of the pair. If its receives are shared, `receives` does not count.
    pub fn limits(&self) -> Limits {
        self.inner.core.limits
    }

    /// How many sends, writes, reads and atomics are in flight: posted, and not yet out of the poller.
    pub fn sends_in_flight(&self) -> u32 {
        self.inner.send.outstanding()
    }

    /// How many receives are in flight.
    pub fn receives_in_flight(&self) -> u32
    where
        T: OwnReceives,
    {
        self.inner.receive.outstanding()
    }

    /// Whether the poller has seen a request of the pair fail. If so, the device is no longer in the state that the
    /// type names, and posts are refused as [`Broken`](crate::PostError::Broken).
    pub fn is_broken(&self) -> bool {
        self.inner.core.is_broken()
    }

    /// The first failure that the poller saw: it broke the pair. `None` if no request failed, or if all failures were
    /// flushes, which do not name the cause.
    pub fn first_failure(&self) -> Option<Status> {
        self.inner.core.first_failure()
    }

    /// The state that the device says the pair is in. It may enter Error by itself at any time. All attributes, the
    /// state among them, are in [`query`](Self::query).
    ///
    /// # Errors
    ///
    /// The device is gone.
    #[doc(alias = "ibv_query_qp")]
    pub fn query_state(&self) -> Result<DeviceState, VerbError> {
        Ok(DeviceState::from_raw(self.inner.core.query(Mask::IBV_QP_STATE)?.qp_state))
    }

    /// Moves the pair from Reset to Init, on a port: pass a `&Port` for the usual attributes, or
    /// [`InitAttributes`](crate::attributes::InitAttributes)
    /// ([`DatagramInitAttributes`](crate::attributes::DatagramInitAttributes) for datagrams).
    ///
    /// `ibv_modify_qp(3)`. After a reset the first packet sequence number is a new one: exchange
    /// [`endpoint`](Self::endpoint)s again.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::Unsettled`] after a reset with requests in flight; [`TransitionFailure::NoGid`],
    /// [`TransitionFailure::OtherDevice`] or [`TransitionFailure::PkeyIndex`] of the port; or the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_init(
        mut self,
        attr: impl Into<T::InitAttributes>,
    ) -> Result<QueuePair<B, Init, T>, TransitionError<Self>>
    where
        S: GoesTo<Init>,
    {
        let attr = attr.into();
        let port = attr.port();
        if !port.is_of(&self.inner.core.domain.context) {
            return self.fail(TransitionFailure::OtherDevice);
        }
        let Some(core) = self.inner.unsplit() else {
            let source = VerbError::new("ibv_modify_qp", libc::EBUSY);
            return self.fail(TransitionFailure::Verb { to: Init::NAME, source });
        };
        if !core.is_settled() {
            return self.fail(TransitionFailure::Unsettled);
        }
        if port.link_layer() == LinkLayer::Ethernet && port.gid().is_none() {
            return self.fail(TransitionFailure::NoGid { port: port.number() });
        }
        let local = core.local.on(port);
        if let Err(source) = local.has_pkey(attr.pkey_index()) {
            return self.fail(source);
        }
        core.local = local;
        let datagram_bytes = local.mtu.bytes() as u16;
        self.inner.send.set_datagram_bytes(datagram_bytes);
        self.transition(attr.modify(code::<T>()))
    }

    /// Moves the pair from Ready To Send to Send Queue Drain: the device completes the requests that it has started,
    /// and holds back the others.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// The device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_sqd(self) -> Result<QueuePair<B, SendQueueDrain, T>, TransitionError<Self>>
    where
        S: GoesTo<SendQueueDrain>,
    {
        if let Err(source) = self.not_on_iwarp(NotOnIwarp::Drain) {
            return self.fail(source);
        }
        self.transition(Modify::drain())
    }

    /// Moves the pair to Error: the device flushes every request, each with a completion of [`Status::Flushed`].
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// The device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_error(self) -> Result<QueuePair<B, Errored, T>, TransitionError<Self>>
    where
        S: GoesTo<Errored>,
    {
        self.transition(Modify::to(raw_state::IBV_QPS_ERR))
    }

    /// Moves the pair to Reset: the device drops every request. Requests in flight come out of the poller as failures
    /// with [`Status::Destroyed`].
    ///
    /// `ibv_modify_qp(3)`. The pair keeps its number. If requests were in flight, the pair can go to Init only after
    /// the completion queue was polled empty.
    ///
    /// # Errors
    ///
    /// [`ResetInFlight`](crate::error::TransitionFailure::ResetInFlight) and
    /// [`ResetShared`](crate::error::TransitionFailure::ResetShared): with this provider, a reset does not end requests
    /// in flight. Or the device refused. For soft-RoCE this asks the device twice, so the pair may have been reset in
    /// spite of the error: reset it again, or destroy it.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_reset(mut self) -> Result<QueuePair<B, Reset, T>, TransitionError<Self>> {
        match self.inner.reset() {
            Ok(()) => Ok(QueuePair::assume_state(self.inner)),
            Err(source) => self.fail(source),
        }
    }

    /// Destroys the pair, as a drop does, but reports a failure.
    ///
    /// `ibv_destroy_qp(3)`. Requests in flight come out of the poller as failures with [`Status::Destroyed`]: poll
    /// until nothing more comes. Not every provider allows a destroy at any time. If
    /// [`pairs_end_at_once`](crate::device::Promises::pairs_end_at_once) is false, `Ok` means that the pair went to
    /// Error and now belongs to its poller: go on polling. The requests in flight come out as flushed, and then the
    /// poller destroys the pair.
    ///
    /// # Errors
    ///
    /// [`DestroyError`]: the device refused. The pair comes back, with its requests still in flight.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        if self.inner.is_left_to_poller() {
            return Ok(());
        }
        match self.inner.destroy_now() {
            Ok(()) => Ok(()),
            Err(UndestroyedPair { source, .. }) => Err(DestroyError { queue_pair: self, source }),
        }
    }
}

/// The transitions of a reliable connection.
impl<B: Brand, S: State, T: Reliable> QueuePair<B, S, T> {
    /// Moves the pair from Init to Ready To Receive.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::NoPeerGid`], [`TransitionFailure::Mtu`], [`TransitionFailure::Path`],
    /// [`TransitionFailure::Multicast`], [`TransitionFailure::ReadDepth`]; or the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rtr(self, attr: &RtrAttributes) -> Result<QueuePair<B, ReadyToReceive, T>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToReceive>,
    {
        self.ready_to_receive_reliably(attr)
    }

    /// Moves the pair from Ready To Receive to Ready To Send.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::ReadDepth`]; or the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rts(self, attr: &RtsAttributes) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToSend>,
    {
        self.ready_to_send_reliably(attr)
    }
}

/// The transitions of all connections, reliable and unreliable.
impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// Moves the pair from Init to Ready To Send, connected to `peer`, with [the default
    /// attributes](ConnectAttributes).
    ///
    /// Both sides call this, in any order. If the first message of the peer needs a receive, post one before.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::NotOnIwarp`]: connect by `cm::connect` there. [`TransitionFailure::NoPeerGid`],
    /// [`TransitionFailure::Multicast`]; or the device refused one of the two transitions. The pair comes back in the
    /// state that it reached.
    #[allow(clippy::type_complexity, reason = "a pair of two states")]
    pub fn connect(self, peer: &Endpoint) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<AnyQueuePair<B, T>>>
    where
        S: GoesTo<ReadyToReceive>,
        T: Connected,
    {
        if code::<T>() == code::<ReliableConnection>() {
            self.connect_reliably(peer, &ConnectAttributes::default())
        } else {
            self.connect_unreliably(peer)
        }
    }

    /// As [`connect`](Self::connect), with attributes that the caller chooses.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); [`TransitionFailure::Mtu`].
    #[allow(clippy::type_complexity, reason = "a pair of two states")]
    pub fn connect_with(
        self,
        peer: &Endpoint,
        attr: &ConnectAttributes,
    ) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<AnyQueuePair<B, T>>>
    where
        S: GoesTo<ReadyToReceive>,
        T: Reliable,
    {
        self.connect_reliably(peer, attr)
    }
    #[allow(clippy::type_complexity, reason = "a pair of two states")]
    fn connect_reliably(
        self,
        peer: &Endpoint,
        attr: &ConnectAttributes,
    ) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<AnyQueuePair<B, T>>> {
        let any = |error: TransitionError<Self>| TransitionError {
            queue_pair: error.queue_pair.into(),
            source: error.source,
        };
        let local = self.inner.core.local;
        let device = match self.inner.core.device() {
            Ok(device) => device,
            Err(source) => {
                return self.fail(TransitionFailure::Verb { to: ReadyToReceive::NAME, source }).map_err(any);
            }
        };
        let at_most = |limit: i32| attr.read_depth.min(ReadDepth::saturating(limit));
        let receive = RtrAttributes {
            path: PeerPath {
                gid: peer.gid(),
                lid: peer.lid(),
                hop_limit: attr.hop_limit,
                traffic_class: attr.traffic_class,
                flow_label: 0,
                service_level: attr.service_level,
            },
            path_mtu: attr.path_mtu.unwrap_or(local.mtu.min(peer.mtu())),
            destination: peer.queue_pair(),
            receive_psn: peer.psn(),
            responder_depth: at_most(device.max_qp_rd_atom),
            min_rnr_timer: attr.min_rnr_timer,
        };
        let send = RtsAttributes {
            send_psn: local.psn,
            timeout: attr.timeout,
            retry_count: attr.retry_count,
            rnr_retry: attr.rnr_retry,
            initiator_depth: at_most(device.max_qp_init_rd_atom),
        };
        self.ready_to_receive_reliably(&receive)
            .map_err(any)?
            .ready_to_send_reliably(&send)
            .map_err(|error| TransitionError { queue_pair: error.queue_pair.into(), source: error.source })
    }

    fn ready_to_receive_reliably(
        self,
        attr: &RtrAttributes,
    ) -> Result<QueuePair<B, ReadyToReceive, T>, TransitionError<Self>> {
        let local = self.inner.core.local;
        let core = &self.inner.core;
        let fits = self.not_on_iwarp(NotOnIwarp::Records).and_then(|()| local.connects_to(&attr.connection()));
        if let Err(source) = fits.and_then(|()| core.has_depths(Some(attr.responder_depth), None)) {
            return self.fail(source);
        }
        self.transition(Modify::ready_to_receive(attr, local.port, local.row()))
    }

    fn ready_to_send_reliably(
        self,
        attr: &RtsAttributes,
    ) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<Self>> {
        if let Err(source) = self.inner.core.has_depths(None, Some(attr.initiator_depth)) {
            return self.fail(source);
        }
        let mut pair = self.transition(Modify::ready_to_send(attr))?;
        pair.inner.send.set_initiator_depth(attr.initiator_depth);
        Ok(pair)
    }
}

/// In RTS: receives and sends.
impl<B: Brand, T: Transport> QueuePair<B, ReadyToSend, T> {
    /// Takes the pair apart for two threads, one that sends and one that receives.
    pub fn split(self) -> (SendHalf<B, T>, ReceiveHalf<B, T>)
    where
        T: OwnReceives,
    {
        let UntypedPair { send, receive, core } = self.inner;
        (SendHalf::new(send, Arc::clone(&core)), ReceiveHalf::new(receive, core))
    }
}

/// In SQD: the send queue is draining; receives go on.
impl<B: Brand, T: Transport> QueuePair<B, SendQueueDrain, T> {
    /// Waits until the device says that the send queue is drained, or until `timeout` has passed. Returns false if the
    /// queue is not drained by then, or if the pair has gone to Error.
    ///
    /// `ibv_query_qp(3)`, `sq_draining`. This gives no buffers back: they come with their completions.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn drained(&self, timeout: Duration) -> Result<bool, VerbError> {
        let deadline = Instant::now().checked_add(timeout);
        let core = &self.inner.core;
        loop {
            let now = core.query(Mask(Mask::IBV_QP_STATE.0 | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0))?;
            if now.qp_state != raw_state::IBV_QPS_SQD || now.sq_draining == 0 {
                return Ok(now.qp_state == raw_state::IBV_QPS_SQD);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            thread::sleep(core.domain.context.next_timer().map_or(PAUSE, |timer| timer.min(PAUSE)));
        }
    }

    /// Moves the pair back to Ready To Send.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::Draining`]: requests that the device has started are still under way. Or the device
    /// refused.
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "into_rts")]
    pub fn resume(self) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<Self>> {
        let mut pair = self.transition(Modify::to(raw_state::IBV_QPS_RTS)).map_err(|error| {
            let draining = error.queue_pair.query().is_ok_and(|now| now.draining);
            let source = if draining { TransitionFailure::Draining } else { error.source };
            TransitionError { source, ..error }
        })?;
        let row = pair.inner.core.domain.context.promises();
        pair.inner.send.nudge_after_drain(row);
        Ok(pair)
    }
}

/// The pause between two queries. No event says that a send queue is drained.
const PAUSE: Duration = Duration::from_millis(1);

/// In Error: the device flushes all requests. The exits are [`into_reset`](QueuePair::into_reset) and
/// [`destroy`](QueuePair::destroy), best after [`drain`](QueuePair::drain).
impl<B: Brand, T: Transport> QueuePair<B, Errored, T> {
    /// Polls until every request of this pair has come out. Each polled completion goes to `sink`, also those of other
    /// pairs.
    ///
    /// Moves the pair to Error again now and then, since some devices flush only on such a call. If sends and receives
    /// complete on different queues, use [`drain_on`](Self::drain_on). A pair on a shared receive queue waits only for
    /// its sends.
    ///
    /// A successful unsignalled send is not flushed: it comes out together with a later request. If no later request is
    /// left, this posts an empty one, whose flush brings the sends back; `sink` does not see the empty request. After a
    /// timeout, the empty request may come out of the poller or go to another `sink`: it has no memory, and an id that
    /// no post has returned. On datagram pairs, where a request needs a recipient, nothing is posted: reset and destroy
    /// bring such sends back.
    ///
    /// # Errors
    ///
    /// [`Undrained`]: the deadline passed, or [something failed](DrainFailure). The pair is still in Error.
    pub fn drain(
        &mut self,
        poller: &mut Poller<B>,
        timeout: Duration,
        sink: impl FnMut(Completion<B>),
    ) -> Result<(), Undrained> {
        self.drain_by([poller], timeout, sink)
    }

    /// As [`drain`](Self::drain), for a pair whose sends and receives complete on different queues.
    ///
    /// # Errors
    ///
    /// As [`drain`](Self::drain).
    pub fn drain_on(
        &mut self,
        sends: &mut Poller<B>,
        receives: &mut Poller<B>,
        timeout: Duration,
        sink: impl FnMut(Completion<B>),
    ) -> Result<(), Undrained> {
        self.drain_by([sends, receives], timeout, sink)
    }

    fn drain_by<const POLLERS: usize>(
        &mut self,
        mut pollers: [&mut Poller<B>; POLLERS],
        timeout: Duration,
        mut sink: impl FnMut(Completion<B>),
    ) -> Result<(), Undrained> {
        let domain = self.inner.core.domain.id();
        let mixes = B::CHECKED && pollers.iter().any(|poller| poller.queue().domain.id() != domain);
        let ours = [&self.inner.core.send_queue, &self.inner.core.receive_queue].map(Arc::as_ptr);
        let strays = pollers.iter().any(|poller| !ours.contains(&Arc::as_ptr(poller.queue())));
        let deadline = Instant::now().checked_add(timeout);
        let (mut kick, mut kicks, mut marker) = (Instant::now(), 0_u32, None);
        let source = loop {
            if mixes {
                break Some(DrainFailure::OtherDomain);
            }
            if strays {
                break Some(DrainFailure::OtherQueue);
            }
            // The pollers take turns, so that a busy poller cannot keep the others from being polled.
            pollers.rotate_left(1);
            let idle = match pollers.iter_mut().find_map(|poller| poller.poll().transpose()).transpose() {
                Ok(Some(completion)) => {
                    if marker != Some(completion.id()) {
                        sink(completion);
                    }
                    false
                }
                Ok(None) => true,
                Err(error) => break Some(error.into()),
            };
            if self.sends_in_flight() == 0 && self.inner.receive.outstanding() == 0 {
                return Ok(());
            }
            // The deadline is checked after each completion too: other pairs of the queue may keep the poller busy for
            // ever.
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                break None;
            }
            if now >= kick {
                if let Err(error) = self.inner.core.modify(Modify::to(raw_state::IBV_QPS_ERR)) {
                    break Some(error.into());
                }
                kick = now + 20 * PAUSE;
                kicks += 1;
                // By now the device has flushed every signalled request, so what is left must be unsignalled. If all
                // requests are signalled on this provider, an empty request would bring nothing back.
                let has_unsignalled = self.inner.core.domain.context.promises().sends_may_be_unsignalled();
                if kicks == 3
                    && has_unsignalled
                    && code::<T>() != ibv_qp_type::IBV_QPT_UD
                    && self.sends_in_flight() != 0
                {
                    marker = self.inner.send.post_marker::<B, _, _>(WorkRequest::send(Inline(&[])));
                }
            } else if idle {
                thread::sleep(PAUSE);
            }
        };
        Err(Undrained { sends: self.sends_in_flight(), receives: self.inner.receive.outstanding(), timeout, source })
    }
}

impl<B, S: State, T> fmt::Debug for QueuePair<B, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.inner.core.qpn())
            .field("state", &S::NAME)
            .field("first_failure", &self.inner.core.first_failure())
            .finish_non_exhaustive()
    }
}
