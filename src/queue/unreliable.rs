//! Transitions of unreliable connections, and those after a failed send, which datagram pairs have too.

use super::AnyQueuePair;
use super::attributes::{Modify, PeerPath, UnreliableRtrAttributes};
use super::error::{TransitionError, TransitionFailure};
use super::pair::QueuePair;
use super::state::{DeviceState, GoesTo, ReadyToReceive, ReadyToSend, SendQueueError, State};
use super::transport::{OnShared, Transport, Unreliable, UnreliableConnection};
use crate::domain::Brand;
use crate::queue::Endpoint;
use crate::sys::ibv_qp_state as raw_state;
use crate::types::{Gid, Psn};

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
        self.transition(Modify::ready_to_receive_unreliably(attr, local.port, local.row()))
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
            .map_err(|error| TransitionError { queue_pair: error.queue_pair.into(), source: error.source })?
            .transition(Modify::ready_to_send_from(local.psn))
            .map_err(|error| TransitionError { queue_pair: error.queue_pair.into(), source: error.source })
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
    /// [`TransitionFailure::Undrained`]: sends are still in flight; [`TransitionFailure::Uncertain`]; or the device
    /// refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn resume(self) -> Result<QueuePair<B, ReadyToSend, T>, TransitionError<Self>> {
        let sends = self.sends_in_flight();
        if sends != 0 {
            return self.fail(TransitionFailure::Undrained { sends });
        }
        if self.inner.core.is_poisoned() {
            return self.fail(TransitionFailure::Uncertain);
        }
        let pair = self.transition(Modify::to(raw_state::IBV_QPS_RTS))?;
        pair.inner.core.forget_failures();
        Ok(pair)
    }
}
