//! Errors of rdma_cm: why two sides did not connect, and why a connection ended.

use super::private_data::PeerData;
use crate::device::OpenError;
use crate::device::iwarp::NotOnIwarp;
use crate::provider::cm::OpenFailure;
use crate::queue::error::TransitionFailure;
use crate::verb_error::VerbError;
use std::time::Duration;
use std::{error, fmt, io};

/// Why a call failed that asks nothing of a peer: opening a channel, making an identifier, listening, taking a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// A host name was not resolved, or has no address.
    #[error("the host name was not resolved to an address: check it, or give an address")]
    Name(#[source] io::Error),
    /// The device that `INTERLOCK_DEVICE` names was not opened, or no device is, because of an environment variable.
    #[error(transparent)]
    Open(#[from] Box<OpenError>),
    /// A call failed.
    #[error("{}{}", .0, hint(.0))]
    Call(#[from] VerbError),
    /// A device has no node GUID, and the installed librdmacm ends the process when an address leads to such a device.
    /// So no channel is opened.
    #[error("{}", no_node_guid(.device, *.release))]
    NoNodeGuid {
        /// The device.
        device: String,
        /// The rdma-core release of the installed librdmacm.
        release: u32,
    },
    /// The device is an iWARP device, and iWARP has no datagrams.
    #[error(transparent)]
    NotOnIwarp(NotOnIwarp),
    /// The timeout passed.
    #[error("no peer asked to connect within {0:?}: wait again, or check which address and port the peers use")]
    TimedOut(Duration),
    /// The device was removed: drop everything that was made from it.
    #[error("the device was removed: drop everything that was made from it")]
    DeviceRemoved,
}

/// A hint on what to check, where the error number alone does not tell.
fn hint(error: &VerbError) -> &'static str {
    match (error.verb(), error.errno()) {
        ("rdma_create_event_channel", libc::EOPNOTSUPP) => {
            " (this program was built without librdmacm: install librdmacm-dev or rdma-core-devel, and build again)"
        }
        ("rdma_create_event_channel", libc::ENODEV | libc::ENOENT) => " (load the kernel module: modprobe rdma_ucm)",
        ("rdma_create_event_channel" | "rdma_create_id", libc::EACCES | libc::EPERM) => {
            " (check that this user may open /dev/infiniband/rdma_cm)"
        }
        ("rdma_bind_addr", libc::EADDRNOTAVAIL) => " (not an address of this host?)",
        ("rdma_bind_addr", libc::ENODEV) => " (the interface of this address has no RDMA device)",
        ("rdma_bind_addr" | "rdma_listen", libc::EADDRINUSE) => " (another listener has this port)",
        ("rdma_resolve_addr", libc::ENODEV) => " (the interface towards this address has no RDMA device)",
        ("rdma_resolve_addr", libc::ENETUNREACH) => " (no route to this address)",
        ("rdma_resolve_route", libc::ENODEV) => " (is it a loopback address? Use an address of the device)",
        ("rdma_join_multicast", libc::EINVAL) => {
            " (is it a multicast address, and is the identifier bound to the address of a device?)"
        }
        ("rdma_resolve_addr", libc::ETIMEDOUT | libc::EHOSTUNREACH) => " (nobody has this address?)",
        ("rdma_connect", libc::ETIMEDOUT | libc::EHOSTUNREACH) => " (no TCP connection to the peer's host: is it up?)",
        _ => "",
    }
}

fn no_node_guid(device: &str, release: u32) -> String {
    format!(
        "librdmacm of rdma-core {release} ends the process if an address leads to a device without a node GUID, and \
         {device} has none: install rdma-core 56 or later, or give the device a GUID (`ip link set DEVICE vf N \
         node_guid ..`; see docs/failures.md#no-node-guid)"
    )
}

impl From<OpenFailure> for CmError {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Call(error) => Self::Call(error),
            OpenFailure::NoNodeGuid { device, release } => Self::NoNodeGuid { device, release },
        }
    }
}

/// Why two sides did not connect, or why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// A host name was not resolved, or has no address.
    #[error("the host name was not resolved to an address: check it, or give an address")]
    Name(#[source] io::Error),
    /// The device that `INTERLOCK_DEVICE` names was not opened.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// A call of this side failed.
    #[error("{}{}", .0, hint(.0))]
    Call(#[source] VerbError),
    /// The address was not resolved: nobody has it, or no RDMA device leads there.
    #[error("the address was not resolved: {}{} (see docs/failures.md#address-not-resolved)", .0, hint(.0))]
    Address(#[source] VerbError),
    /// No route was found. On InfiniBand, routes come from the subnet manager.
    #[error(
        "no route to the address: {0} (on InfiniBand: does a subnet manager run? See docs/failures.md#address-not-resolved)"
    )]
    Route(#[source] VerbError),
    /// The queue pair or the domain is not on the device and port that lead to the peer.
    #[error(
        "the peer is reached through {wanted}, but the queue pair or its domain is on {found}: create it on {wanted} \
         (see docs/failures.md#device-of-another-address)"
    )]
    OtherDevice {
        /// The device and port of the identifier.
        wanted: String,
        /// The device of the queue pair or domain, with the port of a pair.
        found: String,
    },
    /// A device has no node GUID, and the installed librdmacm ends the process when an address leads to such a device.
    /// So no channel is opened.
    #[error("{}", no_node_guid(.device, *.release))]
    NoNodeGuid {
        /// The device.
        device: String,
        /// The rdma-core release of the installed librdmacm.
        release: u32,
    },
    /// The queue pair completes on a completion queue that is not the queue of the shared poller.
    #[error(
        "the queue pair completes on another completion queue than the shared poller polls: use the \
         shared poller of the queue pair's completion queue"
    )]
    OtherQueue,
    /// The device is an iWARP device, and iWARP has no datagrams.
    #[error(transparent)]
    NotOnIwarp(NotOnIwarp),
    /// The peer rejected the connection.
    #[error("the connection was rejected: {reason} (see docs/failures.md#rejected)")]
    Rejected {
        /// The reason that the peer gave.
        reason: RejectReason,
        /// The private data that the peer sent with the rejection.
        data: PeerData,
    },
    /// No queue pair of the peer takes these datagrams.
    #[error("the peer named no queue pair for datagrams: {reason} (see docs/failures.md#not-served)")]
    NotServed {
        /// The reason that the peer gave.
        reason: LookupReason,
        /// The private data that the peer sent with its answer.
        data: PeerData,
    },
    /// The pair does not have the queue key that rdma_cm gives to peers.
    #[error(
        "rdma_cm gives peers the queue key {wanted:#x}, but the queue pair has {found:#x}: move the pair to Init with \
         `Qkey::CONNECTION_MANAGER` (see docs/failures.md#other-key)"
    )]
    OtherKey {
        /// The key that rdma_cm gives to peers.
        wanted: u32,
        /// The key of the queue pair.
        found: u32,
    },
    /// The peer's host does not answer.
    #[error(
        "the peer's host did not answer (status {status}): check that it is up and that a program listens there \
         (see docs/failures.md#unreachable)"
    )]
    Unreachable {
        /// The status that rdma_cm reported: a negative `errno`.
        status: i32,
    },
    /// rdma_cm reported that the connection was not made, or that the group was not joined.
    #[error("rdma_cm reported a failure: {0}; connect with a new identifier and a new pair, or join the group again")]
    Failed(#[source] VerbError),
    /// The peer's program ended or gave up before the connection was established.
    #[error("the peer ended or gave up before the connection was established (see docs/failures.md#peer-gone)")]
    PeerGone(#[source] VerbError),
    /// The peer has disconnected, or its process has ended.
    #[error("the peer has disconnected, or its process has ended (see docs/failures.md#disconnected)")]
    Disconnected,
    /// The device was removed: drop everything that was made from it.
    #[error("the device was removed: drop everything that was made from it")]
    DeviceRemoved,
    /// The timeout passed.
    #[error(
        "no answer within {0:?}: check that the peer's program runs and answers, or wait longer (see \
         docs/failures.md#no-answer)"
    )]
    TimedOut(Duration),
    /// A transition of the queue pair failed.
    #[error(transparent)]
    Pair(#[from] TransitionFailure),
}

impl Cause {
    pub(crate) fn of(error: CmError) -> Self {
        match error {
            CmError::Name(error) => Self::Name(error),
            CmError::Open(error) => Self::Open(error),
            CmError::Call(error) => Self::Call(error),
            CmError::NoNodeGuid { device, release } => Self::NoNodeGuid { device, release },
            CmError::NotOnIwarp(what) => Self::NotOnIwarp(what),
            CmError::TimedOut(time) => Self::TimedOut(time),
            CmError::DeviceRemoved => Self::DeviceRemoved,
        }
    }

    pub(super) fn rejected(status: i32, data: Vec<u8>) -> Self {
        Self::Rejected { reason: RejectReason(status), data: PeerData(data) }
    }
}

/// Why a peer rejected a connection: the reason code of the IBTA specification (12.6.7.2), or on iWARP a negative
/// `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RejectReason(pub i32);

impl RejectReason {
    /// The peer's program refused, or ended before it answered.
    pub const CONSUMER: Self = Self(28);
    /// Nobody listens on that port.
    pub const NO_SUCH_SERVICE: Self = Self(8);
    /// The peer still has an earlier connection to a queue pair with the same number.
    pub const STALE_CONNECTION: Self = Self(10);
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            1 => "the peer has no queue pair left",
            3 => "the peer has no resources left",
            4 => "the peer waited too long for this side",
            5 => "the peer does not support this kind of request",
            6 => "the peer does not know this connection (has it ended?)",
            8 => "nobody listens on that port",
            10 => {
                "the peer still has a connection of a queue pair with this number: use another pair, or wait a second"
            }
            12 => "the peer has no port with the GID that the request names",
            26 => "the peer cannot use this path MTU",
            27 => "the peer cannot serve that many reads at once",
            28 => "the peer's program refused, or ended before it answered",
            31 => "the peer speaks another version of the protocol",
            35 => "the peer does not support an option of this vendor",
            errno if errno < 0 => {
                return write!(f, "the peer refused ({})", io::Error::from_raw_os_error(errno.saturating_neg()));
            }
            other => return write!(f, "reason {other} in section 12.6.7.2 of the IBTA specification"),
        };
        f.write_str(text)
    }
}

/// Why a lookup was not answered with a queue pair: the status code of the IBTA specification (12.11.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LookupReason(pub i32);

impl LookupReason {
    /// Nobody listens on that port.
    pub const NO_SUCH_SERVICE: Self = Self(1);
    /// The peer's program refused, or ended before it answered.
    pub const REFUSED: Self = Self(2);
    /// The service has no queue pair.
    pub const NO_PAIR: Self = Self(3);
}

impl fmt::Display for LookupReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            1 => "nobody listens on that port",
            2 => "the peer's program refused, or ended before it answered",
            3 => "the service has no queue pair",
            other => return write!(f, "reason {other} in section 12.11.2.1 of the IBTA specification"),
        })
    }
}

/// A step that failed. The error gives back the objects that the step took.
pub struct Failed<T> {
    /// The objects that the step took, in their present state.
    pub value: T,
    /// Why the step failed.
    pub cause: Cause,
}

impl<T> Failed<T> {
    /// The cause alone, without the objects, which are dropped.
    pub fn into_cause(self) -> Cause {
        self.cause
    }

    /// The failure of a step with which its identifier `id` ends. That end wakes tasks. If a waker panics, `value` is
    /// dropped. A value that is already being returned would be leaked.
    pub(super) fn ending<I>(id: I, value: T, cause: Cause) -> Self {
        let failed = Self { value, cause };
        drop(id);
        failed
    }

    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> U) -> Failed<U> {
        Failed { value: f(self.value), cause: self.cause }
    }
}

impl<T> fmt::Debug for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("cause", &self.cause).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl<T> error::Error for Failed<T> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.cause.source()
    }
}
