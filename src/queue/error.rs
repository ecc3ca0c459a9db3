//! Errors of queue pairs. Where a pair was consumed, the error gives it back.

use super::state::DeviceState;
use crate::completion::{NoRoom, PollError};
use crate::device::CompletionQueueId;
use crate::device::iwarp::NotOnIwarp;
use crate::provider::reviewed::Promises;
use crate::types::{Mtu, OutOfRange, PortNumber, Qpn, ReadDepth};
use crate::verb_error::VerbError;
use std::time::Duration;
use std::{error, fmt};

/// Why a queue pair was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The completion queue cannot take all the completions that the pair could cause.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// A completion queue of another protection domain. Only domains of the brand [`Checked`](crate::Checked) get this
    /// far; others do not compile.
    #[error("{queue} belongs to another protection domain: take one from the domain of the queue pair")]
    OtherDomain {
        /// The completion queue.
        queue: CompletionQueueId,
    },
    /// A depth of 0, or one that is too large.
    #[error(
        "a work queue holds 1 to {most} requests, not {asked}: change `Limits::sends`, `Limits::receives` or the `SharedLimits`"
    )]
    Depth {
        /// The requested depth.
        asked: u32,
        /// The largest depth of this library.
        most: u32,
    },
    /// Sends and receives were to complete on two queues. With this provider the poller destroys pairs, and a pair can
    /// have only one poller.
    #[error(
        "with this provider ({provider}) a queue pair needs one completion queue for both sends and receives: pass one queue \
         twice, or call `reliable` instead of `reliable_on`"
    )]
    TwoQueues {
        /// The name of the provider, as far as it is known.
        provider: &'static str,
    },
    /// The devices of this provider have no shared receive queues, or only ones that are unsafe in the current
    /// environment.
    #[error("shared receive queues cannot be used with this provider ({provider}){}", hint_of_shared(.set))]
    NoSharedReceives {
        /// The name of the provider, as far as it is known.
        provider: &'static str,
        /// The environment variable, with its value, that makes them safe.
        set: Option<(&'static str, &'static str)>,
    },
    /// The device takes no requests through `ibv_wr_*`, or its provider does not follow `ibv_wr_post(3)`
    /// (`docs/providers.md`). On rxe it works if [`Limits::elements`](crate::Limits::elements) is 0 or 1.
    #[error("requests cannot be posted with ibv_wr_* on this device: create the queue pair with `Posting::List`")]
    NoWorkRequestApi(#[source] VerbError),
    /// The device has no atomic writes, or not on this transport.
    #[error(
        "this device has no atomic writes on this transport: create the queue pair with `Posting::List` and do without"
    )]
    NoAtomicWrites(#[source] VerbError),
    /// An iWARP device does not have the transport, or its provider has no safe pairs there.
    #[error(transparent)]
    NotOnIwarp(NotOnIwarp),
    /// The device answered with an error. `EINVAL` and `ENOMEM` often mean that the limits are more than the device
    /// has.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl CreateError {
    /// Checks that shared receive queues of this provider can be used.
    pub(super) fn check_shared(promises: &Promises) -> Result<(), Self> {
        promises.shared.check().map_err(|set| Self::NoSharedReceives { provider: promises.name, set })
    }
}

/// The part of the error's text that says what the program can do.
fn hint_of_shared(set: &Option<(&'static str, &'static str)>) -> String {
    match set {
        Some((variable, value)) => format!(
            ": start the program with {variable}={value}; without it, a poll may write a short message into the memory of a \
             receive that another thread posts at the same time"
        ),
        None => ": give each queue pair receives of its own".to_owned(),
    }
}

/// A transition that did not happen. The error gives the pair back.
pub struct TransitionError<Q> {
    /// The queue pair, in the state that it had before the failed transition.
    pub queue_pair: Q,
    /// Why the transition did not happen.
    pub source: TransitionFailure,
}

/// Why a transition did not happen.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionFailure {
    /// The device refused.
    #[error("the queue pair did not move to {to}{}", hint(.to, .source))]
    Verb {
        /// The requested state.
        to: &'static str,
        /// What the device answered.
        source: VerbError,
    },
    /// The device is an iWARP device, where a program does not move pairs in this way.
    #[error(transparent)]
    NotOnIwarp(NotOnIwarp),
    /// The pair was reset with requests in flight, and their completions may still be in the completion queue.
    #[error(
        "the completion queue may still hold completions from before the reset: poll until it is empty, then try again \
         (see docs/failures.md#unsettled)"
    )]
    Unsettled,
    /// The port belongs to another device.
    #[error("the port belongs to another device: take a port from the context of the queue pair")]
    OtherDevice,
    /// The port has no GID, without which peers cannot reach it on Ethernet.
    #[error(
        "port {port} has no GID: check that its network interface is up and has an address (see docs/failures.md#no-gid)"
    )]
    NoGid {
        /// The port.
        port: PortNumber,
    },
    /// The peer has no GID, without which it cannot be reached on Ethernet.
    #[error(
        "the peer's endpoint has no GID, without which it cannot be reached on Ethernet: give the peer's interface an address \
         (see docs/failures.md#no-gid)"
    )]
    NoPeerGid,
    /// The path MTU is larger than the port's.
    #[error("the path MTU must be at most the port's {most} bytes, not {asked}")]
    Mtu {
        /// The requested MTU.
        asked: Mtu,
        /// What the port carries.
        most: Mtu,
    },
    /// A number of the path to the peer is out of range.
    #[error(transparent)]
    Path(#[from] OutOfRange),
    /// The port's table of partition keys has no such entry.
    #[error("the port's table of partition keys has {rows} entries: there is none at index {asked}")]
    PkeyIndex {
        /// The requested index.
        asked: u16,
        /// How many entries the table has.
        rows: u16,
    },
    /// The number of the peer's queue pair stands for all members of a multicast group. A connection has one peer.
    #[error("{number} stands for all members of a multicast group: connect to the number of one queue pair")]
    Multicast {
        /// The number.
        number: Qpn,
    },
    /// The device cannot serve that many reads and atomics at once, or cannot have that many outstanding.
    #[error("the device supports at most {most} reads and atomics at once, not {asked} (see `DeviceAttributes`)")]
    ReadDepth {
        /// The requested number.
        asked: ReadDepth,
        /// What the device has.
        most: u32,
    },
    /// The device says that the pair is in another state.
    #[error("the queue pair is not in {asked}: the device reports {state:?} (try again later, or move it to Error)")]
    Elsewhere {
        /// The state that the program asked for.
        asked: &'static str,
        /// The state that the device reported.
        state: DeviceState,
    },
    /// Requests that the device has started are still under way.
    #[error("the send queue is still draining: wait with `drained`, then try again")]
    Draining,
    /// Sends are still in flight.
    #[error("{sends} sends have not come out of the poller yet: poll, then try again")]
    Undrained {
        /// How many.
        sends: u32,
    },
    /// A post was [uncertain](crate::PostError::Uncertain): the device may have the request.
    #[error(
        "an earlier post failed, and the device may have its request all the same: destroy the queue pair, or reset it \
         where that is allowed (see docs/failures.md#uncertain)"
    )]
    Uncertain,
    /// With this provider, a pair that was reset, or that has left Send Queue Error, is not like a new one.
    #[error(
        "with this provider ({provider}) a queue pair can be used only once: it cannot be reset, and an unreliable \
         pair cannot be resumed, because later requests could complete too early; drain the queue pair, destroy it and \
         create another (see docs/failures.md#used-once)"
    )]
    UsedOnce {
        /// The name of the provider, as far as it is known.
        provider: &'static str,
    },
    /// The pair is on a shared receive queue. With this provider, a reset would lose messages that nobody has polled
    /// yet.
    #[error(
        "with this provider ({provider}) a pair on a shared receive queue cannot be reset, because receives could be lost: \
         destroy the queue pair and create another"
    )]
    ResetShared {
        /// The provider.
        provider: &'static str,
    },
    /// A completion queue has no slot left, and after the reset the pair needs a new one.
    #[error(
        "the completion queue has no slot left for the queue pair after a reset: destroy the pair, and create another on \
         another completion queue"
    )]
    NoSlot,
}

/// The likely cause, by the error number.
fn hint(to: &str, source: &VerbError) -> &'static str {
    match (to, source.errno()) {
        ("ReadyToReceive", libc::ENODATA) => {
            ": the entry of the GID table is empty (did the address of the port change?)"
        }
        ("ReadyToReceive", libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ETIMEDOUT) => {
            ": no route to the peer's GID, or no answer from the next hop"
        }
        ("ReadyToReceive", libc::EINVAL) => {
            ": the device refused an attribute: check that an Ethernet port has a GID, and that the MTU and the \
             responder depth are within the limits of the port and the device"
        }
        ("ReadyToSend", libc::EINVAL) => {
            ": the device refused an attribute (check the initiator depth), or the send queue is still draining"
        }
        _ => ": it keeps its state, so try again or destroy it",
    }
}

impl<Q> TransitionError<Q> {
    /// The error without the pair, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> TransitionFailure {
        self.source
    }
}

impl<Q> fmt::Display for TransitionError<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl<Q> fmt::Debug for TransitionError<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransitionError").field("source", &self.source).finish_non_exhaustive()
    }
}

impl<Q> error::Error for TransitionError<Q> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        error::Error::source(&self.source)
    }
}

impl<Q> From<TransitionError<Q>> for TransitionFailure {
    /// Drops the pair, so that `?` works even if the brand is not `'static`.
    fn from(error: TransitionError<Q>) -> Self {
        error.source
    }
}

/// A pair that the device did not destroy. The error gives it back.
///
/// Some providers may leave such a pair half-destroyed. The program can then do nothing with the pair: posts are
/// refused as [`PostError::Broken`](crate::PostError::Broken) and all other verbs with `EIO`. The pair and the memory
/// of its requests stay allocated for the life of the process.
#[derive(thiserror::Error)]
#[error("the queue pair was not destroyed: try again, or drop it (see docs/failures.md#not-destroyed)")]
pub struct DestroyError<Q> {
    /// The queue pair.
    pub queue_pair: Q,
    /// What the device answered.
    pub source: VerbError,
}

impl<Q> DestroyError<Q> {
    /// The error without the pair, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> VerbError {
        self.source
    }
}

impl<Q> fmt::Debug for DestroyError<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DestroyError").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Requests were still in flight at the deadline. [`destroy`](crate::QueuePair::destroy) brings their memory back, and
/// so does [`into_reset`](crate::QueuePair::into_reset) if
/// [`pairs_can_be_reset`](crate::device::Promises::pairs_can_be_reset) is true.
#[derive(Debug, thiserror::Error)]
#[error("{sends} sends and {receives} receives were not flushed{} (see docs/failures.md#undrained)", until(.source, *.timeout))]
pub struct Undrained {
    /// Sends, writes, reads and atomics in flight.
    pub sends: u32,
    /// Receives in flight.
    pub receives: u32,
    /// The timeout.
    pub timeout: Duration,
    /// The failure that stopped the draining; `None` if the deadline passed.
    pub source: Option<DrainFailure>,
}

fn until(source: &Option<DrainFailure>, timeout: Duration) -> String {
    match source {
        Some(_) => String::new(), // the source says why, and what to do
        None => format!(" within {timeout:?}: destroy the queue pair, or reset it where that is allowed"),
    }
}

/// Why a pair was not drained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrainFailure {
    /// A poller belongs to a queue on which the pair does not complete. Nothing was polled.
    #[error("the poller belongs to another completion queue: pass the pollers of the queue pair's completion queues")]
    OtherQueue,
    /// The completion queue failed.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// The device answered with an error.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// The poller belongs to another protection domain, and was not polled. Only domains of the brand
    /// [`Checked`](crate::Checked) get this far; others do not compile.
    #[error("the poller belongs to another protection domain: pass the poller of the queue pair's completion queue")]
    OtherDomain,
}
