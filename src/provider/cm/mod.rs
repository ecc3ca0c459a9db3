//! rdma_cm: channels and identifiers, of librdmacm or of a fabric of soft devices. Their calls are safe in any state.
//!
//! A call in a wrong state returns an error here, even if the C function would end the process. The types in
//! [`cm`](crate::cm) know which state allows which call.
//!
//! Nobody holds an event: [`RawChannel::take_event`] copies and acknowledges an event in one call. `rdma_destroy_id(3)`
//! waits until every event that was taken is acknowledged; here, every such event already is.

#[cfg(librdmacm)]
mod librdmacm;

use crate::sys::{ibv_ah_attr, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use crate::verb_error::VerbError;
use std::fmt::{self, Debug};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The most bytes of private data that an event carries.
#[cfg(librdmacm)]
pub(crate) const MAX_PRIVATE_DATA: usize = 256;

/// Opens a channel of librdmacm.
pub(crate) fn open() -> Result<Arc<dyn RawChannel>, OpenFailure> {
    #[cfg(librdmacm)]
    return librdmacm::open();
    #[cfg(not(librdmacm))]
    Err(VerbError::unsupported("rdma_create_event_channel").into())
}

/// Why a channel was not opened.
#[derive(Debug)]
pub(crate) enum OpenFailure {
    /// A call failed.
    Call(VerbError),
    /// A device has no node GUID, and this release of librdmacm would end the process because of that.
    #[cfg_attr(not(librdmacm), allow(dead_code, reason = "only librdmacm has this fault"))]
    NoNodeGuid { device: String, release: u32 },
}

impl From<VerbError> for OpenFailure {
    fn from(error: VerbError) -> Self {
        Self::Call(error)
    }
}

/// The descriptor of a channel, borrowed from it.
pub(crate) fn descriptor(channel: &dyn RawChannel) -> BorrowedFd<'_> {
    channel.fd()
}

/// The port space of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortSpace {
    /// Reliable connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// An event channel, which delivers the events of its identifiers.
pub(crate) trait RawChannel: Debug + Send + Sync {
    /// The descriptor that is readable while events wait. It does not block, and lives as long as the channel.
    fn fd(&self) -> BorrowedFd<'_>;

    /// `rdma_create_id`. The events of the identifier carry `key`.
    fn create_id(self: Arc<Self>, space: PortSpace, key: u64) -> Result<Box<dyn RawId>, VerbError>;

    /// `rdma_get_cm_event` and `rdma_ack_cm_event`: takes the oldest event, if there is one. If the event brings a new
    /// identifier, the events of that identifier will carry `fresh_key`.
    fn take_event(self: Arc<Self>, fresh_key: u64) -> Result<Option<RawEvent>, VerbError>;

    /// The time until the channel must be polled even if its descriptor is not readable; `None` if that is never
    /// necessary.
    fn next_timer(&self) -> Option<Duration>;
}

/// An identifier. Dropping it destroys the identifier (`rdma_destroy_id(3)`) and its events.
///
/// The methods are those of librdmacm. A call in a state that does not allow it returns an error, usually `EINVAL`.
pub(crate) trait RawId: Debug + Send + Sync {
    /// `rdma_bind_addr`.
    fn bind(&mut self, address: SocketAddr) -> Result<(), VerbError>;
    /// `rdma_resolve_addr`.
    fn resolve_addr(&mut self, source: Option<SocketAddr>, to: SocketAddr, timeout: Duration) -> Result<(), VerbError>;
    /// `rdma_resolve_route`.
    fn resolve_route(&mut self, timeout: Duration) -> Result<(), VerbError>;
    /// `rdma_listen`. A backlog of 0 is the most that the system allows.
    fn listen(&mut self, backlog: u32) -> Result<(), VerbError>;
    /// `rdma_connect`.
    fn connect(&mut self, parameters: &Parameters<'_>) -> Result<(), VerbError>;
    /// `rdma_accept`.
    fn accept(&mut self, parameters: &Parameters<'_>) -> Result<(), VerbError>;
    /// `rdma_reject`.
    fn reject(&mut self, private_data: &[u8]) -> Result<(), VerbError>;
    /// `rdma_establish`.
    fn establish(&mut self) -> Result<(), VerbError>;
    /// `rdma_notify` of `IBV_EVENT_COMM_EST`.
    fn notify_established(&mut self) -> Result<(), VerbError>;
    /// `rdma_disconnect`.
    fn disconnect(&mut self) -> Result<(), VerbError>;
    /// `rdma_init_qp_attr`: the attributes that a pair needs to move to the state `to`, with the mask of the filled
    /// members.
    fn pair_attributes(&self, to: ibv_qp_state) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), VerbError>;
    /// `rdma_set_option`.
    fn set_option(&mut self, option: IdOption) -> Result<(), VerbError>;
    /// `rdma_join_multicast`.
    fn join_multicast(&mut self, group: SocketAddr) -> Result<(), VerbError>;
    /// `rdma_leave_multicast`.
    fn leave_multicast(&mut self, group: SocketAddr) -> Result<(), VerbError>;
    /// The address of this side; `None` while the identifier has none.
    fn local_address(&self) -> Option<SocketAddr>;
    /// The peer's address; `None` while the identifier has none.
    fn peer_address(&self) -> Option<SocketAddr>;
    /// Whether the identifier can be destroyed only after the peer has answered its connect or accept. The event of
    /// that answer may already be in the channel.
    fn ends_with_event(&self) -> bool {
        false
    }
    /// The device and the port that the identifier is bound to; `None` while it is bound to no device.
    fn device(&self) -> Option<BoundDevice>;
}

/// The device that an identifier is bound to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BoundDevice {
    pub(crate) name: String,
    /// Its node GUID, in network byte order; 0 if it has none.
    pub(crate) guid_be: u64,
    /// The port of the device, from 1.
    pub(crate) port: u8,
    /// The address of the fabric that a soft device belongs to; 0 for a real device.
    pub(crate) fabric: usize,
    /// The device speaks iWARP: only rdma_cm can connect its queue pairs, and the device moves them by itself.
    pub(crate) is_iwarp: bool,
}

/// An option of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdOption {
    /// `RDMA_OPTION_ID_TOS`.
    TypeOfService(u8),
    /// `RDMA_OPTION_ID_REUSEADDR`.
    ReuseAddress(bool),
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`.
    AckTimeout(u8),
}

/// The parameters that one side sends to the other: `rdma_conn_param`.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "all that the C struct has; neither implementation uses all of it")]
pub(crate) struct Parameters<'a> {
    /// At most 255 bytes. The callers know the limit of each call.
    pub(crate) private_data: &'a [u8],
    /// How many reads and atomics of the peer this side serves at once.
    pub(crate) responder_resources: u8,
    /// How many reads and atomics this side has outstanding at most.
    pub(crate) initiator_depth: u8,
    /// 0 to 7. Ignored in an accept.
    pub(crate) retry_count: u8,
    /// 0 to 7; 7 means for ever.
    pub(crate) rnr_retry_count: u8,
    /// The pair receives from a shared queue.
    pub(crate) has_shared_receives: bool,
    pub(crate) queue_pair: u32,
    /// Used for datagrams only.
    pub(crate) qkey: u32,
}

/// A copy of an event that was acknowledged.
#[derive(Debug)]
pub(crate) struct RawEvent {
    /// The key of the identifier; that of the listener, if the event brings a new identifier.
    pub(crate) key: u64,
    pub(crate) kind: RawEventKind,
    /// 0, or the error: a negative `errno`, or the reason of a reject.
    pub(crate) status: i32,
    pub(crate) parameters: EventParameters,
    /// The new identifier of a connect request.
    pub(crate) request: Option<NewId>,
}

/// An identifier that came with an event.
#[derive(Debug)]
pub(crate) struct NewId {
    pub(crate) raw: Box<dyn RawId>,
    pub(crate) key: u64,
}

/// The code of an event: `rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RawEventKind(pub(crate) u32);

#[allow(dead_code, reason = "the whole list of the header")]
impl RawEventKind {
    pub(crate) const ADDR_RESOLVED: Self = Self(0);
    pub(crate) const ADDR_ERROR: Self = Self(1);
    pub(crate) const ROUTE_RESOLVED: Self = Self(2);
    pub(crate) const ROUTE_ERROR: Self = Self(3);
    pub(crate) const CONNECT_REQUEST: Self = Self(4);
    pub(crate) const CONNECT_RESPONSE: Self = Self(5);
    pub(crate) const CONNECT_ERROR: Self = Self(6);
    pub(crate) const UNREACHABLE: Self = Self(7);
    pub(crate) const REJECTED: Self = Self(8);
    pub(crate) const ESTABLISHED: Self = Self(9);
    pub(crate) const DISCONNECTED: Self = Self(10);
    pub(crate) const DEVICE_REMOVAL: Self = Self(11);
    pub(crate) const MULTICAST_JOIN: Self = Self(12);
    pub(crate) const MULTICAST_ERROR: Self = Self(13);
    pub(crate) const ADDR_CHANGE: Self = Self(14);
    pub(crate) const TIMEWAIT_EXIT: Self = Self(15);
    /// An event of this library, which is not in the header: a call that another thread made has failed. The status is
    /// its negative `errno`.
    pub(crate) const CALL_FAILED: Self = Self(u32::MAX);
}

/// The peer's data in an event. Members that the event does not have are zero.
#[derive(Clone, Default)]
#[allow(dead_code, reason = "all that the C struct has")]
pub(crate) struct EventParameters {
    /// The data, with the zeros that pad them on the wire.
    pub(crate) private_data: Vec<u8>,
    /// How many reads of the peer this side may have to serve.
    pub(crate) responder_resources: u8,
    /// How many reads this side may have outstanding.
    pub(crate) initiator_depth: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) queue_pair: u32,
    /// The path to the peer or the group, in an event for datagrams.
    pub(crate) path: Option<ibv_ah_attr>,
    pub(crate) qkey: u32,
}

impl fmt::Debug for EventParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventParameters")
            .field("private_data", &self.private_data)
            .field("queue_pair", &self.queue_pair)
            .finish_non_exhaustive()
    }
}
