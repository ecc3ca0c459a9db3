//! Attributes that a pair changes without leaving its state, and the attributes that the device reports.

use super::attributes::{Modify, PeerPath, PeerRights};
use super::error::TransitionFailure;
use super::pair::QueuePair;
use super::state::{Alterable, AlterableWhileDraining, DeviceState, ReadyToSend, SendQueueDrain, State};
use super::transport::{Connected, Connectionless, Reliable, Transport, code};
use crate::domain::Brand;
use crate::sys::ibv_qp_attr_mask as Mask;
use crate::types::{AckTimeout, Mtu, PortNumber, Psn, Qkey, Qpn, ReadDepth, RetryCount, RnrRetry, RnrTimer};
use crate::verb_error::VerbError;

/// The attributes that a reliable connection can change in Send Queue Drain. A field that is `None` changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SqdAttributes {
    /// How packets reach the peer.
    #[doc(alias = "IBV_QP_AV")]
    pub path: Option<PeerPath>,
    /// How long to wait for an acknowledgement.
    pub timeout: Option<AckTimeout>,
    /// How often to send again when no acknowledgement comes in time.
    pub retry_count: Option<RetryCount>,
    /// How often to send again when the peer has no receive posted.
    pub rnr_retry: Option<RnrRetry>,
    /// How long the peer waits when no receive is posted here.
    pub min_rnr_timer: Option<RnrTimer>,
    /// How many of this side's reads and atomics may be outstanding at once; at most the peer's responder depth.
    #[doc(alias = "max_rd_atomic")]
    pub initiator_depth: Option<ReadDepth>,
    /// How many reads and atomics of the peer are served at once.
    #[doc(alias = "max_dest_rd_atomic")]
    pub responder_depth: Option<ReadDepth>,
    /// The row of the partition key.
    pub pkey_index: Option<u16>,
}

impl SqdAttributes {
    /// Adds the attributes that are not `None` to `modify`.
    fn add_to(&self, modify: &mut Modify, port: PortNumber, source_row: u8) {
        if let Some(path) = &self.path {
            modify.set_path(path, port, source_row);
        }
        if let Some(timer) = self.min_rnr_timer {
            modify.set_min_rnr_timer(timer);
        }
        let to = &mut modify.attributes;
        let mut set = |is_set: bool, bit| {
            if is_set {
                modify.mask |= bit;
            }
        };
        to.timeout = self.timeout.map_or(0, AckTimeout::value);
        set(self.timeout.is_some(), Mask::IBV_QP_TIMEOUT);
        to.retry_cnt = self.retry_count.map_or(0, RetryCount::value);
        set(self.retry_count.is_some(), Mask::IBV_QP_RETRY_CNT);
        to.rnr_retry = self.rnr_retry.map_or(0, RnrRetry::value);
        set(self.rnr_retry.is_some(), Mask::IBV_QP_RNR_RETRY);
        to.max_rd_atomic = self.initiator_depth.map_or(0, ReadDepth::value);
        set(self.initiator_depth.is_some(), Mask::IBV_QP_MAX_QP_RD_ATOMIC);
        to.max_dest_rd_atomic = self.responder_depth.map_or(0, ReadDepth::value);
        set(self.responder_depth.is_some(), Mask::IBV_QP_MAX_DEST_RD_ATOMIC);
        to.pkey_index = self.pkey_index.unwrap_or(0);
        set(self.pkey_index.is_some(), Mask::IBV_QP_PKEY_INDEX);
    }
}

/// The attributes of a pair that the device reports. A field that the state or the transport does not have is 0,
/// `None`, or whatever the device put there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_qp_attr")]
pub struct QueuePairAttributes {
    /// The state. The device may enter Error by itself at any time.
    pub state: DeviceState,
    /// In Send Queue Drain: whether requests that the device has started are still under way.
    #[doc(alias = "sq_draining")]
    pub draining: bool,
    /// What the peer may do.
    #[doc(alias = "qp_access_flags")]
    pub peer_rights: PeerRights,
    /// The port.
    pub port: Option<PortNumber>,
    /// The row of the partition key.
    pub pkey_index: u16,
    /// The path MTU.
    pub path_mtu: Option<Mtu>,
    /// The peer's queue pair.
    #[doc(alias = "dest_qp_num")]
    pub destination: Qpn,
    /// The packet sequence number that is expected next. Some devices report the first one that was expected.
    #[doc(alias = "rq_psn")]
    pub receive_psn: Psn,
    /// The packet sequence number that is sent next. Some devices report the first one that was sent.
    #[doc(alias = "sq_psn")]
    pub send_psn: Psn,
    /// How long the pair waits for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often the pair sends again when no acknowledgement comes in time.
    #[doc(alias = "retry_cnt")]
    pub retry_count: RetryCount,
    /// How often the pair sends again when the peer has no receive posted.
    pub rnr_retry: RnrRetry,
    /// How long the peer waits when no receive is posted here.
    pub min_rnr_timer: RnrTimer,
    /// How many of this side's reads and atomics may be outstanding at once.
    #[doc(alias = "max_rd_atomic")]
    pub initiator_depth: ReadDepth,
    /// How many reads and atomics of the peer are served at once.
    #[doc(alias = "max_dest_rd_atomic")]
    pub responder_depth: ReadDepth,
    /// The Q_Key that datagrams to this pair must carry.
    pub qkey: Qkey,
}

/// The fields that [`QueuePairAttributes`] is made from. They are listed one by one, since a device may refuse a mask
/// with bits that it does not know.
const QUERIED: Mask = Mask(
    Mask::IBV_QP_STATE.0
        | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0
        | Mask::IBV_QP_ACCESS_FLAGS.0
        | Mask::IBV_QP_PORT.0
        | Mask::IBV_QP_PKEY_INDEX.0
        | Mask::IBV_QP_PATH_MTU.0
        | Mask::IBV_QP_DEST_QPN.0
        | Mask::IBV_QP_RQ_PSN.0
        | Mask::IBV_QP_SQ_PSN.0
        | Mask::IBV_QP_TIMEOUT.0
        | Mask::IBV_QP_RETRY_CNT.0
        | Mask::IBV_QP_RNR_RETRY.0
        | Mask::IBV_QP_MIN_RNR_TIMER.0
        | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0
        | Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
        | Mask::IBV_QP_QKEY.0,
);

impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// The attributes of the pair that the device reports.
    ///
    /// `ibv_query_qp(3)`.
    ///
    /// # Errors
    ///
    /// The device is gone.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QueuePairAttributes, VerbError> {
        let raw = self.inner.core.query(QUERIED)?;
        Ok(QueuePairAttributes {
            state: DeviceState::from_raw(raw.qp_state),
            draining: raw.sq_draining != 0,
            peer_rights: PeerRights::from_sys(raw.qp_access_flags),
            port: PortNumber::new(raw.port_num).ok(),
            pkey_index: raw.pkey_index,
            path_mtu: Mtu::from_code(raw.path_mtu.0).ok(),
            destination: Qpn::from_device(raw.dest_qp_num),
            receive_psn: Psn::clamped(raw.rq_psn),
            send_psn: Psn::clamped(raw.sq_psn),
            timeout: AckTimeout::clamped(raw.timeout),
            retry_count: RetryCount::clamped(raw.retry_cnt),
            rnr_retry: RnrRetry::clamped(raw.rnr_retry),
            min_rnr_timer: RnrTimer::clamped(raw.min_rnr_timer),
            initiator_depth: ReadDepth::clamped(raw.max_rd_atomic),
            responder_depth: ReadDepth::clamped(raw.max_dest_rd_atomic),
            qkey: Qkey(raw.qkey),
        })
    }

    /// Changes the attributes that `set` fills in. The pair keeps its state.
    fn alter(&mut self, set: impl FnOnce(&mut Modify)) -> Result<(), VerbError>
    where
        S: Alterable,
    {
        let mut modify = Modify::without_state();
        set(&mut modify);
        self.inner.core.modify(modify)
    }

    /// Changes what the peer may do through this pair from now on. A request of the peer beyond these rights fails on
    /// the peer's side, and breaks this pair.
    ///
    /// `ibv_modify_qp(3)`. An access that is under way may go on: only deregistering the region gives the memory back.
    ///
    /// # Errors
    ///
    /// The device refused, and nothing changed: `EINVAL` if the pair has gone to Error by itself (soft-RoCE accepts the
    /// change in Error).
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "IBV_QP_ACCESS_FLAGS")]
    pub fn set_peer_rights(&mut self, rights: PeerRights) -> Result<(), VerbError>
    where
        S: Alterable,
        T: Connected,
    {
        self.alter(|modify| modify.set_peer_rights(rights, code::<T>()))
    }
}

impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// Changes the Q_Key that datagrams to this pair must carry.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// As [`set_peer_rights`](Self::set_peer_rights); `EPERM` for a key with the top bit set, unless the program is
    /// privileged.
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "IBV_QP_QKEY")]
    pub fn set_qkey(&mut self, qkey: Qkey) -> Result<(), VerbError>
    where
        S: Alterable,
        T: Connectionless,
    {
        self.alter(|modify| {
            modify.attributes.qkey = qkey.0;
            modify.mask |= Mask::IBV_QP_QKEY;
        })
    }
}

impl<B: Brand, T: Transport> QueuePair<B, ReadyToSend, T> {
    /// Changes how long the peer waits when no receive is posted here.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// As [`set_peer_rights`](Self::set_peer_rights).
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "IBV_QP_MIN_RNR_TIMER")]
    pub fn set_min_rnr_timer(&mut self, timer: RnrTimer) -> Result<(), VerbError>
    where
        T: Reliable,
    {
        self.alter(|modify| modify.set_min_rnr_timer(timer))
    }
}

impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// Sends along another path from now on, to the same queue pair of the peer.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// [`TransitionFailure::Draining`]: requests that the device has started are still under way. Otherwise the path
    /// does not fit the port, or the device refused. Nothing changed.
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "IBV_QP_AV")]
    pub fn set_path(&mut self, path: &PeerPath) -> Result<(), TransitionFailure>
    where
        S: AlterableWhileDraining,
        T: Connected,
    {
        let local = self.inner.core.local;
        local.reaches(path, local.mtu)?;
        self.alter_drained(|modify| modify.set_path(path, local.port, local.gid_index()))
    }

    fn alter_drained(&mut self, set: impl FnOnce(&mut Modify)) -> Result<(), TransitionFailure>
    where
        S: AlterableWhileDraining,
    {
        let refused = |source| TransitionFailure::Verb { to: SendQueueDrain::NAME, source };
        // The specification allows changes of a connection's attributes in Send Queue Drain only after the queue has
        // drained. Not every device checks that, so check it here.
        if self.query().map_err(refused)?.draining {
            return Err(TransitionFailure::Draining);
        }
        self.alter(set).map_err(refused)
    }

    /// Changes the attributes of the connection that are not `None`. If the call fails, none is changed.
    ///
    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// As [`set_path`](Self::set_path).
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &SqdAttributes) -> Result<(), TransitionFailure>
    where
        S: AlterableWhileDraining,
        T: Reliable,
    {
        let local = self.inner.core.local;
        if let Some(path) = &attr.path {
            local.reaches(path, local.mtu)?;
        }
        if let Some(row) = attr.pkey_index {
            local.has_pkey(row)?;
        }
        self.inner.core.has_depths(attr.responder_depth, attr.initiator_depth)?;
        self.alter_drained(|modify| attr.add_to(modify, local.port, local.gid_index()))?;
        if let Some(depth) = attr.initiator_depth {
            self.inner.send.set_initiator_depth(depth);
        }
        Ok(())
    }
}
