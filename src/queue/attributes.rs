//! The attributes with which a queue pair is created, and those of each transition: exactly the ones that
//! `ibv_modify_qp(3)` requires.

use crate::device::Port;
use crate::inflight::Posting;
use crate::sys::{self, ibv_access_flags, ibv_qp_attr_mask as Mask};
use crate::types::{
    AckTimeout, Gid, Mtu, OutOfRange, PortNumber, Psn, Qkey, Qpn, ReadDepth, RetryCount, RnrRetry, RnrTimer,
};

mod sealed {
    use super::{Modify, Port, sys};

    /// The attributes of the transition from Reset to Init.
    #[allow(unnameable_types, reason = "seals the attributes of `Transport`")]
    pub trait ToInit: for<'p> From<&'p Port> {
        fn port(&self) -> &Port;
        fn pkey_index(&self) -> u16;
        fn modify(&self, kind: sys::ibv_qp_type) -> Modify;
    }
}
pub(super) use sealed::ToInit;

/// How many requests a queue pair may have in flight, how large they may be, and how they are posted.
///
/// # Examples
///
/// ```
/// use interlock::Limits;
///
/// let limits = Limits { sends: 128, inline_bytes: 64, ..Limits::default() };
/// assert_eq!(limits.completions(), 128 + 4); // the room that such a pair takes on a completion queue
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_qp_cap")]
#[doc(alias = "ibv_qp_init_attr")]
pub struct Limits {
    /// Sends, writes, reads and atomics; 1 to the device's
    /// [`max_queue_depth`](crate::device::DeviceAttributes::max_queue_depth).
    #[doc(alias = "max_send_wr")]
    pub sends: u32,
    /// Receives: 1 to the same device limit.
    #[doc(alias = "max_recv_wr")]
    pub receives: u32,
    /// How many bytes an [`Inline`](crate::Inline) request may have, at most 65535. Each device has a limit, often a
    /// few hundred bytes, which the device does not report: some refuse the pair, and some grant fewer bytes.
    /// [`QueuePair::limits`](crate::QueuePair::limits) has the number that counts.
    #[doc(alias = "max_inline_data")]
    pub inline_bytes: u32,
    /// How many buffers a [`BufferList`](crate::memory::BufferList) posted on this pair may have, for sends and for
    /// receives; 1 (or 0) to the device's [`max_elements`](crate::device::DeviceAttributes::max_elements).
    #[doc(alias = "max_send_sge")]
    #[doc(alias = "max_recv_sge")]
    pub elements: u32,
    /// How requests are handed to the device.
    #[doc(alias = "ibv_create_qp_ex")]
    pub posting: Posting,
}

impl Limits {
    /// Four of each, nothing inline, and no lists: enough for a first program. [`Limits::default`] gives the same; this
    /// is for constants.
    pub const DEFAULT: Self = Self { sends: 4, receives: 4, inline_bytes: 0, elements: 1, posting: Posting::List };

    /// The room on a completion queue that a queue pair with these limits leases.
    pub const fn completions(&self) -> u32 {
        self.sends.saturating_add(self.receives)
    }
}

impl Default for Limits {
    /// [`Limits::DEFAULT`].
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The rights of the peer through this queue pair, besides sending. The peer also needs the rights of the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "qp_access_flags")]
pub struct PeerRights {
    /// Remote reads.
    pub read: bool,
    /// Remote writes.
    pub write: bool,
    /// Remote atomics.
    pub atomic: bool,
}

impl PeerRights {
    /// No rights: the peer may only send.
    pub const NONE: Self = Self { read: false, write: false, atomic: false };
    /// All rights: what the peer can reach depends on the rights of each region.
    pub const ALL: Self = Self { read: true, write: true, atomic: true };

    /// The rights that the flags of an `ibv_access_flags` word name.
    pub(crate) fn from_sys(flags: u32) -> Self {
        let has = |flag: ibv_access_flags| flags & flag.0 != 0;
        Self {
            read: has(ibv_access_flags::IBV_ACCESS_REMOTE_READ),
            write: has(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
            atomic: has(ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC),
        }
    }

    fn to_sys(self) -> u32 {
        let flag = |on: bool, flag: ibv_access_flags| if on { flag.0 } else { 0 };
        flag(self.read, ibv_access_flags::IBV_ACCESS_REMOTE_READ)
            | flag(self.write, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)
            | flag(self.atomic, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
    }
}

/// The attributes of the transition from Reset to Init.
///
/// # Examples
///
/// ```
/// # use interlock::Context;
/// # use interlock::attributes::{InitAttributes, PeerRights};
/// # let port = Context::open("soft0")?.active_port()?;
/// let only_messages = InitAttributes { peer_rights: PeerRights::NONE, ..InitAttributes::from(&port) };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct InitAttributes {
    /// The port, and the GID by which peers reach it.
    pub port: Port,
    /// The row of the partition key, inside the port's [table](Port::pkey_rows); 0 is the default partition.
    pub pkey_index: u16,
    /// What the peer may do.
    pub peer_rights: PeerRights,
}

impl From<&Port> for InitAttributes {
    /// The default partition, and all rights for the peer: each region still has its own rights.
    fn from(port: &Port) -> Self {
        Self { port: port.clone(), pkey_index: 0, peer_rights: PeerRights::ALL }
    }
}

impl ToInit for InitAttributes {
    fn port(&self) -> &Port {
        &self.port
    }

    fn pkey_index(&self) -> u16 {
        self.pkey_index
    }

    fn modify(&self, kind: sys::ibv_qp_type) -> Modify {
        let mut this = Modify::init(&self.port, self.pkey_index);
        this.set_peer_rights(self.peer_rights, kind);
        this
    }
}

/// The attributes of the transition from Reset to Init, for unreliable datagrams.
#[derive(Clone, Debug)]
pub struct DatagramInitAttributes {
    /// The port, and the GID by which peers reach it.
    pub port: Port,
    /// The row of the partition key, inside the port's [table](Port::pkey_rows); 0 is the default partition.
    pub pkey_index: u16,
    /// The Q_Key that datagrams to this pair must carry.
    pub qkey: Qkey,
}

impl From<&Port> for DatagramInitAttributes {
    /// The default partition, and [`Qkey::USUAL`].
    fn from(port: &Port) -> Self {
        Self { port: port.clone(), pkey_index: 0, qkey: Qkey::USUAL }
    }
}

impl ToInit for DatagramInitAttributes {
    fn port(&self) -> &Port {
        &self.port
    }

    fn pkey_index(&self) -> u16 {
        self.pkey_index
    }

    fn modify(&self, _: sys::ibv_qp_type) -> Modify {
        let mut this = Modify::init(&self.port, self.pkey_index);
        this.attributes.qkey = self.qkey.0;
        this.mask |= Mask::IBV_QP_QKEY;
        this
    }
}

/// How packets reach the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_ah_attr")]
#[doc(alias = "ibv_global_route")]
pub struct PeerPath {
    /// The peer's GID; needed on Ethernet and between subnets.
    #[doc(alias = "dgid")]
    pub gid: Option<Gid>,
    /// The peer's local identifier; 0 on Ethernet.
    #[doc(alias = "dlid")]
    pub lid: u16,
    /// Routers that a packet may pass, 1 to 255.
    pub hop_limit: u8,
    /// The traffic class (on RoCE v2 the DSCP and ECN byte of the IP header).
    pub traffic_class: u8,
    /// The flow label, 20 bits (on RoCE v2 it may choose the UDP source port).
    pub flow_label: u32,
    /// The service level, 0 to 15 (on Ethernet the priority).
    pub service_level: u8,
}

impl PeerPath {
    /// A path to `gid`, through up to 64 routers.
    pub fn to(gid: Gid) -> Self {
        Self { gid: Some(gid), lid: 0, hop_limit: 64, traffic_class: 0, flow_label: 0, service_level: 0 }
    }

    /// Checks the numbers that can be out of range: the service level and, if the path has a GID, the hop limit and the
    /// flow label. (The other fields allow every value of their types.)
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        OutOfRange::check("service level", self.service_level.into(), 0, 15)?;
        if self.gid.is_some() {
            OutOfRange::check("hop limit", self.hop_limit.into(), 1, 255)?;
            OutOfRange::check("flow label", self.flow_label.into(), 0, 0xf_ffff)?;
        }
        Ok(())
    }

    /// The C struct for the path from `port`. `source_row` is the row of the source GID in the port's table.
    pub(super) fn to_sys(self, port: PortNumber, source_row: u8) -> sys::ibv_ah_attr {
        let mut attributes =
            sys::ibv_ah_attr { dlid: self.lid, sl: self.service_level, port_num: port.value(), ..Default::default() };
        if let Some(gid) = self.gid {
            attributes.is_global = 1;
            attributes.grh = sys::ibv_global_route {
                dgid: sys::ibv_gid { raw: gid.0 },
                flow_label: self.flow_label,
                sgid_index: source_row,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            };
        }
        attributes
    }
}

/// The attributes of the transition from Init to Ready To Receive, for a reliable connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtrAttributes {
    /// How packets reach the peer.
    pub path: PeerPath,
    /// The MTU: at most the port's active one, and the same on both sides.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub destination: Qpn,
    /// The first packet sequence number that the peer sends.
    pub receive_psn: Psn,
    /// How many reads and atomics of the peer are served at once; 0 serves none.
    #[doc(alias = "max_dest_rd_atomic")]
    pub responder_depth: ReadDepth,
    /// How long the peer waits when no receive is posted.
    pub min_rnr_timer: RnrTimer,
}

impl RtrAttributes {
    /// The part of these attributes that an unreliable connection has too.
    pub(super) fn connection(&self) -> UnreliableRtrAttributes {
        let Self { path, path_mtu, destination, receive_psn, .. } = *self;
        UnreliableRtrAttributes { path, path_mtu, destination, receive_psn }
    }
}

/// The attributes of the transition from Init to Ready To Receive, for an unreliable connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnreliableRtrAttributes {
    /// How packets reach the peer.
    pub path: PeerPath,
    /// The MTU: at most the port's active one, and the same on both sides.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub destination: Qpn,
    /// The first packet sequence number that the peer sends.
    pub receive_psn: Psn,
}

/// The attributes of the transition from Ready To Receive to Ready To Send, for a reliable connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtsAttributes {
    /// The first packet sequence number that this side sends.
    pub send_psn: Psn,
    /// How long to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often to send again when no acknowledgement comes in time.
    pub retry_count: RetryCount,
    /// How often to send again when the peer has no receive posted.
    pub rnr_retry: RnrRetry,
    /// How many of this side's reads and atomics may be outstanding at once; at most the peer's responder depth.
    #[doc(alias = "max_rd_atomic")]
    pub initiator_depth: ReadDepth,
}

/// The attributes of a connection that the peer's endpoint does not give. [`connect`](crate::QueuePair::connect) uses
/// the default.
///
/// The default is: the smaller MTU of the two ports; a timeout of 67 ms with 6 retries, so that a silent peer is given
/// up after about half a second; unlimited retries, 0.64 ms apart, while the peer has no receive posted; up to 16 reads
/// and atomics at once, or as many as the device allows.
///
/// # Examples
///
/// A peer that has no receive posted is given up after 6 retries:
///
/// ```
/// use interlock::attributes::ConnectAttributes;
/// use interlock::number::RnrRetry;
///
/// let impatient = ConnectAttributes { rnr_retry: RnrRetry::new(6)?, ..ConnectAttributes::default() };
/// # Ok::<(), interlock::error::OutOfRange>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectAttributes {
    /// How long to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often to send again when no acknowledgement comes in time.
    pub retry_count: RetryCount,
    /// How often to send again when the peer has no receive posted.
    pub rnr_retry: RnrRetry,
    /// How long the peer waits when no receive is posted here.
    pub min_rnr_timer: RnrTimer,
    /// How many reads and atomics may be outstanding at once, in each direction; lowered to the device's limit.
    pub read_depth: ReadDepth,
    /// The path MTU, the same on both sides; `None` for the smaller MTU of the two ports.
    pub path_mtu: Option<Mtu>,
    /// Routers that a packet may pass, 1 to 255.
    pub hop_limit: u8,
    /// The traffic class: see [`PeerPath`].
    pub traffic_class: u8,
    /// The service level: see [`PeerPath`].
    pub service_level: u8,
}

impl Default for ConnectAttributes {
    fn default() -> Self {
        // The `Err` arm is never reached: each constant below is in the range of its type.
        const fn in_range<T: Copy>(checked: Result<T, crate::types::OutOfRange>) -> T {
            match checked {
                Ok(value) => value,
                Err(_) => panic!("a default out of range"),
            }
        }
        const DEFAULT: ConnectAttributes = ConnectAttributes {
            timeout: in_range(AckTimeout::new(14)),
            retry_count: in_range(RetryCount::new(6)),
            rnr_retry: RnrRetry::FOREVER,
            min_rnr_timer: in_range(RnrTimer::new(12)),
            read_depth: in_range(ReadDepth::new(16)),
            path_mtu: None,
            hop_limit: 64,
            traffic_class: 0,
            service_level: 0,
        };
        DEFAULT
    }
}

/// The attributes of one `ibv_modify_qp`, and the mask that names the ones to change.
#[allow(unnameable_types, reason = "in a sealed trait")]
#[allow(missing_debug_implementations, reason = "nobody gets one")]
pub struct Modify {
    pub(super) attributes: sys::ibv_qp_attr,
    pub(super) mask: Mask,
}

impl Modify {
    /// Changes the state and no other attribute.
    pub(super) fn to(state: sys::ibv_qp_state) -> Self {
        Self { attributes: sys::ibv_qp_attr { qp_state: state, ..Default::default() }, mask: Mask::IBV_QP_STATE }
    }

    /// Starts without a state, for changes in place: some devices treat a change to the current state as a transition.
    pub(super) fn without_state() -> Self {
        Self { attributes: sys::ibv_qp_attr::default(), mask: Mask(0) }
    }

    /// Moves to Send Queue Drain, with an event when the queue is drained.
    pub(super) fn drain() -> Self {
        let mut this = Self::to(sys::ibv_qp_state::IBV_QPS_SQD);
        this.attributes.en_sqd_async_notify = 1;
        this.mask |= Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
        this
    }

    /// The attributes that the transition to Init has on every transport.
    fn init(port: &Port, pkey_index: u16) -> Self {
        let mut this = Self::to(sys::ibv_qp_state::IBV_QPS_INIT);
        this.attributes.port_num = port.number().value();
        this.attributes.pkey_index = pkey_index;
        this.mask = this.mask | Mask::IBV_QP_PORT | Mask::IBV_QP_PKEY_INDEX;
        this
    }

    pub(super) fn set_peer_rights(&mut self, rights: PeerRights, kind: sys::ibv_qp_type) {
        // The specification allows no remote reads and no atomics on an unreliable connection, so keep only the right
        // to write.
        let most = if kind == sys::ibv_qp_type::IBV_QPT_UC { ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 } else { !0 };
        self.attributes.qp_access_flags = rights.to_sys() & most;
        self.mask |= Mask::IBV_QP_ACCESS_FLAGS;
    }

    pub(super) fn set_path(&mut self, path: &PeerPath, port: PortNumber, source_row: u8) {
        self.attributes.ah_attr = path.to_sys(port, source_row);
        self.mask |= Mask::IBV_QP_AV;
    }

    pub(super) fn set_min_rnr_timer(&mut self, timer: RnrTimer) {
        self.attributes.min_rnr_timer = timer.value();
        self.mask |= Mask::IBV_QP_MIN_RNR_TIMER;
    }

    pub(super) fn ready_to_receive(attr: &RtrAttributes, port: PortNumber, source_row: u8) -> Self {
        let mut this = Self::ready_to_receive_unreliably(&attr.connection(), port, source_row);
        this.attributes.max_dest_rd_atomic = attr.responder_depth.value();
        this.set_min_rnr_timer(attr.min_rnr_timer);
        this.mask |= Mask::IBV_QP_MAX_DEST_RD_ATOMIC;
        this
    }

    pub(super) fn ready_to_receive_unreliably(
        attr: &UnreliableRtrAttributes,
        port: PortNumber,
        source_row: u8,
    ) -> Self {
        let mut this = Self::to(sys::ibv_qp_state::IBV_QPS_RTR);
        this.set_path(&attr.path, port, source_row);
        this.attributes.path_mtu = attr.path_mtu.to_sys();
        this.attributes.dest_qp_num = attr.destination.value();
        this.attributes.rq_psn = attr.receive_psn.value();
        this.mask = this.mask | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
        this
    }

    /// Moves to Ready To Send, for UC and UD, which need only the first packet sequence number.
    pub(super) fn ready_to_send_from(send_psn: Psn) -> Self {
        let mut this = Self::to(sys::ibv_qp_state::IBV_QPS_RTS);
        this.attributes.sq_psn = send_psn.value();
        this.mask |= Mask::IBV_QP_SQ_PSN;
        this
    }

    pub(super) fn ready_to_send(attr: &RtsAttributes) -> Self {
        let mut this = Self::to(sys::ibv_qp_state::IBV_QPS_RTS);
        this.attributes.sq_psn = attr.send_psn.value();
        this.attributes.timeout = attr.timeout.value();
        this.attributes.retry_cnt = attr.retry_count.value();
        this.attributes.rnr_retry = attr.rnr_retry.value();
        this.attributes.max_rd_atomic = attr.initiator_depth.value();
        this.mask = this.mask
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        this
    }
}
