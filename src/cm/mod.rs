//! Connecting by address: rdma_cm, with a type for each state of an identifier.
//!
//! librdmacm aborts the process when a program makes one of four calls in a wrong state. It also hangs when a program
//! destroys an identifier before it has acknowledged the identifier's events. Here each state has only the methods that
//! are legal in it, and the library acknowledges each event before the program sees it.
//!
//! ```text
//! client   Idle ── resolve ──▶ Resolving ──▶ Resolved ── connect(pair) ──▶ Connecting ──▶ Connection
//! server   Idle ── bind ──▶ Bound ── listen ──▶ Listener ──▶ Request ── accept(pair) ──▶ Accepting ──▶ Connection
//!
//! datagrams
//! client   Idle ── resolve ──▶ Resolving ──▶ Resolved ── look_up ──▶ LookingUp ──▶ Service ── recipient ──▶ Recipient
//! server   Idle ── bind ──▶ Bound ── listen ──▶ Listener ──▶ Request ── answer(&pair)
//! groups   Idle ── bind ──▶ Bound ── join ──▶ Joining ──▶ Membership ── attach(&mut pair), recipient
//! ```
//!
//! [`connect`] and [`listen`] do the usual steps in one call; for datagrams, [`look_up`] and [`serve`] do. `connect`
//! and `accept` take a pair in Init. On success, the [`Connection`] has the pair in Ready To Send; a failure returns it
//! with the error. Each type that waits has a method `wait` with a timeout, and a method `poll` for an event loop that
//! watches [`Channel::readiness`].
//!
//! On iWARP the side that connects must send the first message, and the other side waits for it (RFC 5044). Each
//! message also needs a receive that was posted before.
//!
//! # Examples
//!
//! Both sides, each step by itself. The server grants a region with its answer, and the client reads it.
//!
//! ```
//! use interlock::cm::{self, AcceptData, Channel, ConnectData, Idle, Parameters};
//! use interlock::{Context, Limits, RemoteRead, RemoteRegion, Work};
//! use std::time::Duration;
//!
//! interlock::domain! { struct Shared; }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let wait = Duration::from_secs(5);
//! let context = Context::open("soft0")?;
//! let domain = context.named_domain(Shared)?;
//! let (queue, mut poller) = domain.completion_queue(16)?;
//! let pair = || -> Result<_, Box<dyn std::error::Error>> {
//!     Ok(domain.reliable(&queue, &Limits::default())?.into_init(&context.active_port()?)?)
//! };
//!
//! let mut listener = cm::listen(&context, "0.0.0.0:0")?;
//! let port = listener.local_address().map_or(0, |at| at.port());
//!
//! let resolving = Idle::new(&Channel::open(&context)?)?.resolve(([127, 0, 0, 1], port).into(), wait)?;
//! let connecting = resolving.wait(wait)?.connect(pair()?, &Parameters::default(), &ConnectData::none())?;
//!
//! let words: Box<[u64]> = Box::new([7, 8]);
//! let region = domain.register::<RemoteRead, _>(words)?;
//! let grant = AcceptData::framed(&region.remote().to_bytes())?;
//! let accepting = listener.next(wait)?.accept(pair()?, &Parameters::default(), &grant)?;
//!
//! let mut client = connecting.wait(wait)?;
//! let mut server = accepting.wait(wait)?;
//! let granted = RemoteRegion::<RemoteRead>::from_bytes(client.data.framed().unwrap_or_default())?;
//! client.pair.post_read(domain.buffer(16)?, &granted)?;
//! let Work::Read(words) = poller.wait(wait)?.check()?.into_work() else { panic!("another request") };
//! assert_eq!(words[..8], 7_u64.to_ne_bytes());
//!
//! client.disconnect()?.pair.drain(&mut poller, wait, drop)?;
//! assert!(server.wait_end(wait)?.is_some());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "an error gives back what the step took, and no step is on the data path")]

mod advice;
mod asked;
mod channel;
mod client;
mod connection;
mod datagram;
mod ended;
mod error;
mod group;
#[cfg(all(test, not(loom), not(miri)))]
mod hostile;
mod meaning;
mod parameters;
mod private_data;
mod server;
#[cfg(feature = "aio")]
mod tasks;
mod wait;

pub use advice::Advice;
pub use channel::Channel;
#[cfg(feature = "aio")]
pub(crate) use channel::Events;
use channel::Identifier;
pub use client::{Connecting, Idle, Resolved, Resolving};
pub use connection::{Connection, Disconnected, Link};
pub use datagram::{LookingUp, Service};
pub use error::{Cause, CmError, Failed, LookupReason, RejectReason};
pub use group::{Joining, Membership};
pub use parameters::Parameters;
pub use private_data::{
    AcceptData, AnswerData, ConnectData, LookupData, PeerData, PrivateData, PrivateDataTooLong, RejectData,
};
pub use server::{Accepting, Bound, Listener, Request};
#[cfg(feature = "aio")]
pub(crate) use tasks::Step;

use crate::device::Context;
use crate::device::iwarp::NotOnIwarp;
use crate::domain::Brand;
use crate::provider::cm::{BoundDevice, PortSpace, RawId};
use crate::queue::state::{Errored, GoesTo, Init, ReadyToSend, State};
use crate::queue::transport::{Reliable, Transport};
use crate::queue::{AnyQueuePair, QueuePair};
use crate::sys::ibv_qp_state as raw_state;
use crate::types::{ReadDepth, RnrTimer};
use crate::verb_error::VerbError;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The kind of identifiers for reliable connections.
#[derive(Debug)]
pub enum Connections {}

/// The kind of identifiers for datagrams.
///
/// A datagram needs no connection. Instead, a client looks up a service: rdma_cm tells the client the number of the
/// queue pair that takes the datagrams of the service, the path to that pair, and its queue key. The server answers
/// each lookup with the number of a pair. It may use one pair for all clients, or one for each. The key is always
/// [`Qkey::CONNECTION_MANAGER`](crate::number::Qkey::CONNECTION_MANAGER).
#[derive(Debug)]
pub enum Datagrams {}

/// The result of a poll.
#[derive(Debug)]
pub enum Progress<P, D> {
    /// Not done yet: poll again later.
    Pending(P),
    /// Done: this is the result.
    Done(D),
}

/// Resolves a host name and a port to at least one address.
fn addresses(of: impl ToSocketAddrs) -> Result<Vec<SocketAddr>, CmError> {
    let found: Vec<_> = of.to_socket_addrs().map_err(CmError::Name)?.collect();
    if found.is_empty() { Err(CmError::Name(io::ErrorKind::NotFound.into())) } else { Ok(found) }
}

/// Connects the pair to whoever listens at `address`. `timeout` limits the whole call, except for the
/// system's resolution of a host name.
///
/// If the name has several addresses, the first one that rdma_cm can resolve is used. The peer reads `data` with
/// [`Request::data`]. For other parameters, start with [`Idle`].
///
/// # Errors
///
/// [`Cause`]. The pair comes back: in Init if certainly nothing was done to it, else in Error. (If the device refuses
/// to move it to Error, it comes back in the state that it had reached.) On iWARP, the pair does not come back if the
/// timeout passes while TCP connects. If the timeout passes later, destroying the pair may block: see [`Connecting`].
pub fn connect<B: Brand, T: Reliable>(
    address: impl ToSocketAddrs,
    pair: QueuePair<B, Init, T>,
    data: &ConnectData,
    timeout: Duration,
) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
    let deadline = Instant::now().checked_add(timeout);
    let left = || deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
    let resolved = match first_resolved(&pair.context(), address, timeout, left, Idle::new) {
        Ok(resolved) => resolved,
        Err(cause) => return Err(Failed { value: pair.into(), cause }),
    };
    resolved
        .connect(pair, &Parameters::default(), data)
        .map_err(|failed| failed.map(|(_, pair)| pair.into()))?
        .wait(left())
        .map_err(|failed| Failed { cause: of_all(failed.cause, timeout), ..failed })
}

/// The cause of a step that had only the rest of `timeout`. If the step timed out, the error reports the whole
/// `timeout`, since that is what the program passed.
fn of_all(cause: Cause, timeout: Duration) -> Cause {
    if matches!(cause, Cause::TimedOut(_)) { Cause::TimedOut(timeout) } else { cause }
}

/// Tries the addresses one after the other, until rdma_cm can resolve one.
fn first_resolved<K>(
    context: &Context,
    address: impl ToSocketAddrs,
    timeout: Duration,
    left: impl Fn() -> Duration,
    new: impl Fn(&Channel) -> Result<Idle<K>, CmError>,
) -> Result<Resolved<K>, Cause> {
    let channel = Channel::open(context).map_err(Cause::of)?;
    let mut last = Cause::TimedOut(timeout);
    for to in addresses(address).map_err(Cause::of)? {
        let idle = new(&channel).map_err(Cause::of)?;
        match idle
            .resolve(to, left())
            .map_err(Failed::into_cause)
            .and_then(|resolving| resolving.wait(left()).map_err(Failed::into_cause))
        {
            Ok(resolved) => return Ok(resolved),
            Err(cause) => last = of_all(cause, timeout),
        }
    }
    Err(last)
}

/// Listens at `address`, an address of this host with a port. Port 0 means any free port.
///
/// # Errors
///
/// [`CmError`]: another listener has the port, or the address is not that of this host.
pub fn listen(context: &Context, address: impl ToSocketAddrs) -> Result<Listener, CmError> {
    listen_by(context, address, Idle::new)
}

fn listen_by<K>(
    context: &Context,
    address: impl ToSocketAddrs,
    new: impl Fn(&Channel) -> Result<Idle<K>, CmError>,
) -> Result<Listener<K>, CmError> {
    let channel = Channel::open(context)?;
    let mut last = CmError::Name(io::ErrorKind::NotFound.into());
    for at in addresses(address)? {
        let bound = new(&channel)?.bind(at).map_err(Failed::into_cause);
        match bound.and_then(|bound| bound.listen(0).map_err(Failed::into_cause)) {
            Ok(listener) => return Ok(listener),
            Err(Cause::Call(error)) => last = CmError::Call(error),
            Err(Cause::NotOnIwarp(what)) => last = CmError::NotOnIwarp(what),
            Err(Cause::DeviceRemoved) => last = CmError::DeviceRemoved,
            Err(_) => {}
        }
    }
    Err(last)
}

/// Looks up which queue pair takes the datagrams of the service at `address`. The whole call takes at most `timeout`,
/// except for the system's resolution of a host name.
///
/// If the name has several addresses, the first one that rdma_cm can resolve is used. The peer reads `data` with
/// [`Request::data`].
///
/// # Errors
///
/// [`Cause::NotServed`], [`Cause::Unreachable`], [`Cause::TimedOut`], [`Cause::Address`].
pub fn look_up(
    context: &Context,
    address: impl ToSocketAddrs,
    data: &LookupData,
    timeout: Duration,
) -> Result<Service, Cause> {
    let deadline = Instant::now().checked_add(timeout);
    let left = || deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
    let resolved = first_resolved(context, address, timeout, left, Idle::for_datagrams)?;
    let looking = resolved.look_up(data).map_err(Failed::into_cause)?;
    looking.wait(left()).map_err(|cause| of_all(cause, timeout))
}

/// Listens for lookups at `address`, an address of this host with a port. Port 0 means any free port.
///
/// # Errors
///
/// [`CmError`]: another listener has the port, the address is not that of this host, or it belongs to an iWARP device.
pub fn serve(context: &Context, address: impl ToSocketAddrs) -> Result<Listener<Datagrams>, CmError> {
    listen_by(context, address, Idle::for_datagrams)
}

/// Checks that the pair is on the device and port that the identifier is bound to.
fn same_device<B: Brand, S: State, T: Transport>(bound: &BoundDevice, pair: &QueuePair<B, S, T>) -> Result<(), Cause> {
    let (port, other) = (pair.port_number().value(), name_of_other(bound, &pair.context()));
    if other.is_none() && port == bound.port {
        return Ok(());
    }
    Err(wrong_device(bound, format!("{} port {port}", other.as_deref().unwrap_or(&bound.name))))
}

/// The name of the device of `context`, if that is not the device that the identifier is bound to; otherwise `None`.
///
/// The devices are compared by their names and their node GUIDs, since a new device may get the name of one that was
/// removed. If a device has no GUID, or does not answer because it was removed, only the names are compared.
fn name_of_other(bound: &BoundDevice, context: &Context) -> Option<String> {
    let key = &context.0.device;
    if !key.is(&bound.name, bound.fabric) {
        return Some(key.name().to_owned());
    }
    let guid_be = context.0.query_device().map_or(0, |device| device.node_guid);
    let is_same = guid_be == 0 || bound.guid_be == 0 || guid_be == bound.guid_be;
    if is_same { None } else { Some(format!("another {}", key.name())) }
}

fn wrong_device(bound: &BoundDevice, found: String) -> Cause {
    Cause::OtherDevice { wanted: format!("{} port {}", bound.name, bound.port), found }
}

/// Brings the pair to Ready To Send, with the attributes that rdma_cm gives.
///
/// rdma_cm gives the read depths of the request, even if this side has agreed to lower ones. So this function sets the
/// agreed depths instead.
fn bring_up<B: Brand, T: Reliable>(
    id: &dyn RawId,
    pair: QueuePair<B, Init, T>,
    [serves, starts]: [ReadDepth; 2],
    min_rnr_timer: RnrTimer,
) -> Result<QueuePair<B, ReadyToSend, T>, Failed<AnyQueuePair<B, T>>> {
    let attributes = [raw_state::IBV_QPS_RTR, raw_state::IBV_QPS_RTS].map(|state| id.pair_attributes(state));
    let (to_rtr, to_rts) = match attributes {
        [Ok(to_rtr), Ok(to_rts)] => (to_rtr, to_rts),
        [Err(error), _] | [_, Err(error)] => {
            let cause = someone_gone(error, &pair);
            return Err(Failed { value: pair.into(), cause });
        }
    };
    let pair = pair
        .into_rtr_by_cm(to_rtr, serves, min_rnr_timer)
        .map_err(|error| Failed { value: error.queue_pair.into(), cause: error.source.into() })?;
    pair.into_rts_by_cm(to_rts, starts)
        .map_err(|error| Failed { value: errored(error.queue_pair), cause: error.source.into() })
}

/// Prepares the pair of a failed step to go back to the program. The step failed after rdma_cm was told of the pair.
///
/// Most devices leave the pair in Init. An iWARP device moves the pair by itself, to Ready To Send or to Error, and
/// perhaps only after this side has read why the step failed. The device never moves a pair out of Error, so on iWARP
/// this function moves the pair to Error.
fn after_failure<B: Brand, T: Transport>(pair: QueuePair<B, Init, T>, is_iwarp: bool) -> AnyQueuePair<B, T> {
    if is_iwarp { errored(pair) } else { pair.into() }
}

/// The cause of a failed call: the peer is gone, or another reason.
fn peer_gone(error: VerbError) -> Cause {
    match error.errno() {
        // `EINVAL`: the peer is gone, and so the identifier is in a state that does not allow the call. The other three
        // errors come from the TCP stream of iWARP.
        libc::EINVAL | libc::ECONNRESET | libc::ENOTCONN | libc::EPIPE => Cause::PeerGone(error),
        _ => Cause::Call(error),
    }
}

/// Like [`peer_gone`], for a call that concerns `pair`. After a removal of the pair's device, rdma_cm returns the
/// errors that otherwise mean that the peer is gone. So this function also queries the pair.
fn someone_gone<B: Brand, S: State, T: Transport>(error: VerbError, pair: &QueuePair<B, S, T>) -> Cause {
    match peer_gone(error) {
        Cause::PeerGone(_) if pair.query_state().is_err_and(is_of_removed_device) => Cause::DeviceRemoved,
        cause => cause,
    }
}

/// Whether this is how a verb fails once its device is removed.
fn is_of_removed_device(error: VerbError) -> bool {
    matches!(error.errno(), libc::EIO | libc::ENODEV)
}

/// Refuses an identifier for datagrams on an iWARP device.
fn not_for_iwarp(id: &Identifier) -> Result<(), Cause> {
    let is_iwarp = id.space == PortSpace::Udp && id.raw.device().is_some_and(|device| device.is_iwarp);
    if is_iwarp { Err(Cause::NotOnIwarp(NotOnIwarp::OtherTransports)) } else { Ok(()) }
}

/// Moves the pair to Error. If that fails, returns the pair in its old state.
fn errored<B: Brand, S: State + GoesTo<Errored>, T: Transport>(pair: QueuePair<B, S, T>) -> AnyQueuePair<B, T> {
    pair.into_error().map_or_else(|error| error.queue_pair.into(), Into::into)
}

#[cfg(all(test, feature = "soft", not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::soft::Fabric;
    use crate::{Checked, Limits, ReliableConnection};
    use std::net::Ipv6Addr;

    /// A device was removed, and another one got its name.
    #[test]
    fn a_device_with_the_name_of_another_is_not_taken_for_it() {
        let context = Context::open_on(&Fabric::new(), "soft0").unwrap();
        let domain = context.checked_domain().unwrap();
        let (queue, _poller) = domain.completion_queue(16).unwrap();
        let pair = domain.reliable(&queue, &Limits::default()).unwrap();
        let pair: QueuePair<Checked, Init, ReliableConnection> =
            pair.into_init(&context.active_port().unwrap()).unwrap();
        let port = context.active_port().unwrap();
        let at = port.gids().iter().find_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped()).unwrap();
        let bound = Idle::new(&Channel::open(&context).unwrap()).unwrap().bind((at, 0).into()).unwrap();
        let bound = bound.id.raw.device().unwrap();
        assert!(same_device(&bound, &pair).is_ok());
        // A GUID of 0 means that the device has none, so only the names count.
        assert!(same_device(&BoundDevice { guid_be: 0, ..bound.clone() }, &pair).is_ok());
        let other = BoundDevice { guid_be: !bound.guid_be, ..bound };
        let Err(Cause::OtherDevice { wanted, found }) = same_device(&other, &pair) else { panic!("another device") };
        assert_eq!((wanted.as_str(), found.as_str()), ("soft0 port 1", "another soft0 port 1"));
    }
}
