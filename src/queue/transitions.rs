//! The transitions of a queue pair from state to state.

use super::AnyQueuePair;
use super::attributes::{
    ConnectAttributes, Modify, PeerPath, RtrAttributes, RtsAttributes, ToInit as _, UnreliableRtrAttributes,
};
use super::error::{TransitionError, TransitionFailure};
use super::pair::QueuePair;
use super::state::{
    DeviceState, Errored, GoesTo, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError, State,
};
use super::transport::{
    Connected, Connectionless, OnShared, Reliable, ReliableConnection, Transport, Unreliable, UnreliableConnection,
    UnreliableDatagram, code,
};
use crate::device::LinkLayer;
use crate::device::iwarp::NotOnIwarp;
use crate::domain::Brand;
use crate::queue::Endpoint;
use crate::sys::{ibv_qp_state as raw_state, ibv_qp_type};
use crate::types::{Gid, Psn, ReadDepth};
use crate::verb_error::VerbError;

/// The error of a transition that is one of several: the pair comes back in the state that it reached.
fn of_any<B, S: State, T>(error: TransitionError<QueuePair<B, S, T>>) -> TransitionError<AnyQueuePair<B, T>> {
    TransitionError { queue_pair: error.queue_pair.into(), source: error.source }
}

/// The transitions of all transports.
impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// Calls `ibv_modify_qp`, and returns the pair in the new state, or the error with the unchanged pair.
    pub(super) fn transition<S2: State>(self, modify: Modify) -> Result<QueuePair<B, S2, T>, TransitionError<Self>> {
        match self.inner.core.modify(modify) {
            Ok(()) => Ok(QueuePair::assume_state(self.inner)),
            Err(source) => self.fail(TransitionFailure::Verb { to: S2::NAME, source }),
        }
    }

    /// Refuses `what` if the pair is on an iWARP device, which cannot do it.
    fn not_on_iwarp(&self, what: NotOnIwarp) -> Result<(), TransitionFailure> {
        if self.inner.core.domain.context.is_iwarp() { Err(TransitionFailure::NotOnIwarp(what)) } else { Ok(()) }
    }

    pub(super) fn fail<Q>(self, source: TransitionFailure) -> Result<Q, TransitionError<Self>> {
        Err(TransitionError { queue_pair: self, source })
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
        let Some(core) = self.inner.core_mut() else {
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
        // If the verb fails, the pair stays in Reset, with the new `core.local`. That does no harm: the next
        // `into_init` sets `core.local` again.
        core.local = local;
        let datagram_bytes = local.mtu.bytes() as u16;
        self.inner.send.set_datagram_bytes(datagram_bytes);
        self.transition(attr.modify(code::<T>()))
    }

    /// Moves the pair from Ready To Send to Send Queue Drain: the device completes the requests that it has started,
    /// and holds back the others. With some providers there is no way back for a pair of an unreliable transport: see
    /// `resume` of [`SendQueueDrain`].
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::NotOnIwarp`]; or the device refused.
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

    /// Moves the pair to Error: the device flushes every request, each with a completion of
    /// [`Status::Flushed`](crate::Status::Flushed).
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
    /// with [`Status::Destroyed`](crate::Status::Destroyed).
    ///
    /// `ibv_modify_qp(3)`. The pair keeps its number. If requests were in flight, the pair can go to Init only after
    /// the completion queue was polled empty.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::UsedOnce`] and [`TransitionFailure::ResetShared`]: with this provider, no pair is reset, or
    /// none on a shared receive queue. [`TransitionFailure::NoSlot`]; [`TransitionFailure::NotOnIwarp`]; or the device
    /// refused. On soft-RoCE the pair may be in Reset in spite of an error: reset it again, or destroy it.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_reset(mut self) -> Result<QueuePair<B, Reset, T>, TransitionError<Self>> {
        match self.inner.reset_and_renew() {
            Ok(()) => Ok(QueuePair::assume_state(self.inner)),
            Err(source) => self.fail(source),
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
    /// [`TransitionFailure::NotOnIwarp`], [`TransitionFailure::NoPeerGid`], [`TransitionFailure::Mtu`],
    /// [`TransitionFailure::Path`], [`TransitionFailure::Multicast`], [`TransitionFailure::ReadDepth`]; or the device
    /// refused.
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
    /// As [`connect`](Self::connect); [`TransitionFailure::Mtu`]; [`TransitionFailure::Path`], if the service level or
    /// the hop limit is out of range.
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
        let local = self.inner.core.local;
        let device = self.inner.core.domain.context.limits();
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
        self.ready_to_receive_reliably(&receive).map_err(of_any)?.ready_to_send_reliably(&send).map_err(of_any)
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
        self.transition(Modify::ready_to_receive(attr, local.port, local.gid_index()))
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

/// In SQD: the send queue is draining; receives go on.
impl<B: Brand, T: Transport> QueuePair<B, SendQueueDrain, T> {
    /// Moves the pair back to Ready To Send.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::Draining`]: requests that the device has started are still under way.
    /// [`TransitionFailure::UsedOnce`]: with this provider, no pair of an unreliable transport is used again. Or the
    /// device refused.
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "into_rts")]
    pub fn resume(self) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<Self>> {
        // A failed send may have moved a pair of an unreliable transport from Send Queue Drain to Send Queue Error. The
        // call below would move such a pair to Ready To Send, too. With some providers, no pair may be used again after
        // Send Queue Error.
        if T::TYPE != ibv_qp_type::IBV_QPT_RC
            && let Err(source) = self.inner.core.can_be_used_again()
        {
            return self.fail(source);
        }
        let mut pair = self.transition(Modify::to(raw_state::IBV_QPS_RTS)).map_err(|error| {
            let draining = error.queue_pair.query().is_ok_and(|now| now.draining);
            let source = if draining { TransitionFailure::Draining } else { error.source };
            TransitionError { source, ..error }
        })?;
        let promises = pair.inner.core.domain.context.promises();
        pair.inner.send.nudge_after_drain(promises);
        Ok(pair)
    }
}

/// The transitions of an unreliable connection.
impl<B: Brand, S: State> QueuePair<B, S, UnreliableConnection> {
    /// Moves the pair from Init to Ready To Receive.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::NoPeerGid`], [`TransitionFailure::Mtu`], [`TransitionFailure::Path`],
    /// [`TransitionFailure::Multicast`]; or the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rtr(
        self,
        attr: &UnreliableRtrAttributes,
    ) -> Result<QueuePair<B, ReadyToReceive, UnreliableConnection>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToReceive>,
    {
        self.ready_to_receive_unreliably(attr)
    }

    /// Moves the pair from Ready To Receive to Ready To Send. Takes the sequence number of the first packet.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// The device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rts(
        self,
        send_psn: Psn,
    ) -> Result<QueuePair<B, ReadyToSend, UnreliableConnection>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToSend>,
    {
        self.transition(Modify::ready_to_send_from(send_psn))
    }
}

/// The transitions of an unreliable connection with shared receives.
impl<B: Brand, S: State> QueuePair<B, S, OnShared<UnreliableConnection>> {
    /// Moves the pair from Init to Ready To Receive.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::NoPeerGid`], [`TransitionFailure::Mtu`], [`TransitionFailure::Path`],
    /// [`TransitionFailure::Multicast`]; or the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rtr(
        self,
        attr: &UnreliableRtrAttributes,
    ) -> Result<QueuePair<B, ReadyToReceive, OnShared<UnreliableConnection>>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToReceive>,
    {
        self.ready_to_receive_unreliably(attr)
    }

    /// Moves the pair from Ready To Receive to Ready To Send. Takes the sequence number of the first packet.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// The device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rts(
        self,
        send_psn: Psn,
    ) -> Result<QueuePair<B, ReadyToSend, OnShared<UnreliableConnection>>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToSend>,
    {
        self.transition(Modify::ready_to_send_from(send_psn))
    }
}

impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    fn ready_to_receive_unreliably(
        self,
        attr: &UnreliableRtrAttributes,
    ) -> Result<QueuePair<B, ReadyToReceive, T>, TransitionError<Self>> {
        let local = self.inner.core.local;
        if let Err(source) = local.connects_to(attr) {
            return self.fail(source);
        }
        self.transition(Modify::ready_to_receive_unreliably(attr, local.port, local.gid_index()))
    }

    #[allow(clippy::type_complexity, reason = "a pair of two states")]
    pub(super) fn connect_unreliably(
        self,
        peer: &Endpoint,
    ) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<AnyQueuePair<B, T>>> {
        let local = self.inner.core.local;
        let attr = UnreliableRtrAttributes {
            path: PeerPath { gid: peer.gid(), lid: peer.lid(), ..PeerPath::to(Gid::default()) },
            path_mtu: local.mtu.min(peer.mtu()),
            destination: peer.queue_pair(),
            receive_psn: peer.psn(),
        };
        self.ready_to_receive_unreliably(&attr)
            .map_err(of_any)?
            .transition(Modify::ready_to_send_from(local.psn))
            .map_err(of_any)
    }
}

/// The transition after a failed send of an unreliable transport.
impl<B: Brand, T: Transport> QueuePair<B, ReadyToSend, T> {
    /// Follows the pair to Send Queue Error, if the device says that it went there after a failed send.
    ///
    /// # Errors
    ///
    /// The device reports another state, or cannot be queried: the pair comes back.
    pub fn into_sqe(self) -> Result<QueuePair<B, SendQueueError, T>, TransitionError<Self>>
    where
        T: Unreliable,
    {
        match self.query_state() {
            Ok(DeviceState::SendQueueError) => Ok(QueuePair::assume_state(self.inner)),
            Ok(state) => self.fail(TransitionFailure::Elsewhere { asked: SendQueueError::NAME, state }),
            Err(source) => self.fail(TransitionFailure::Verb { to: SendQueueError::NAME, source }),
        }
    }
}

/// In SQE: sends are flushed, receives go on.
impl<B: Brand, T: Transport> QueuePair<B, SendQueueError, T> {
    /// Moves the pair back to Ready To Send, once the poller has returned every send.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::Undrained`]: sends are still in flight; [`TransitionFailure::Uncertain`];
    /// [`TransitionFailure::UsedOnce`]: with this provider, no pair is used again; or the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn resume(self) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<Self>> {
        let sends = self.sends_in_flight();
        if sends != 0 {
            return self.fail(TransitionFailure::Undrained { sends });
        }
        if self.inner.core.is_poisoned() {
            return self.fail(TransitionFailure::Uncertain);
        }
        if let Err(source) = self.inner.core.can_be_used_again() {
            return self.fail(source);
        }
        let pair = self.transition(Modify::to(raw_state::IBV_QPS_RTS))?;
        pair.inner.core.forget_failures();
        Ok(pair)
    }
}

/// The transitions of unreliable datagrams, which have no peer to connect to.
impl<B: Brand, S: State> QueuePair<B, S, UnreliableDatagram> {
    /// Moves the pair from Init to Ready To Receive.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// The device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rtr(self) -> Result<QueuePair<B, ReadyToReceive, UnreliableDatagram>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToReceive>,
    {
        self.ready_to_receive()
    }

    /// Moves the pair from Ready To Receive to Ready To Send.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// The device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rts(self) -> Result<QueuePair<B, ReadyToSend, UnreliableDatagram>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToSend>,
    {
        self.ready_to_send()
    }
}

/// The transitions of unreliable datagrams with shared receives.
impl<B: Brand, S: State> QueuePair<B, S, OnShared<UnreliableDatagram>> {
    /// Moves the pair from Init to Ready To Receive.
    ///
    /// # Errors
    ///
    /// The device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rtr(self) -> Result<QueuePair<B, ReadyToReceive, OnShared<UnreliableDatagram>>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToReceive>,
    {
        self.ready_to_receive()
    }

    /// Moves the pair from Ready To Receive to Ready To Send.
    ///
    /// # Errors
    ///
    /// The device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn into_rts(self) -> Result<QueuePair<B, ReadyToSend, OnShared<UnreliableDatagram>>, TransitionError<Self>>
    where
        S: GoesTo<ReadyToSend>,
    {
        self.ready_to_send()
    }
}

/// Methods of all datagram pairs, with receives of their own or shared receives.
impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    fn ready_to_receive(self) -> Result<QueuePair<B, ReadyToReceive, T>, TransitionError<Self>> {
        self.transition(Modify::to(raw_state::IBV_QPS_RTR))
    }

    fn ready_to_send(self) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<Self>> {
        let psn = self.inner.core.local.psn;
        self.transition(Modify::ready_to_send_from(psn))
    }

    /// Moves the pair from Init to Ready To Send. It then sends, and takes datagrams from everyone who knows its Q_Key.
    ///
    /// `ibv_modify_qp(3)`, twice.
    ///
    /// # Errors
    ///
    /// The device refused; the pair comes back in the state that it reached.
    #[allow(clippy::type_complexity, reason = "a pair of two states")]
    pub fn open(self) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<super::AnyQueuePair<B, T>>>
    where
        S: GoesTo<ReadyToReceive>,
        T: Connectionless,
    {
        self.ready_to_receive().map_err(of_any)?.ready_to_send().map_err(of_any)
    }
}
