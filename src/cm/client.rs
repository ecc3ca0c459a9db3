//! The side that connects.

use super::asked::Asked;
use super::channel::{Channel, Identifier};
use super::connection::Connection;
use super::error::{Cause, CmError, Failed};
use super::meaning::{Meaning, Phase};
use super::parameters::Parameters;
use super::private_data::{ConnectData, PeerData};
use super::server::Bound;
use super::wait::{Patience, next, why, why_not_adopted};
use super::{Connections, Datagrams, Progress, after_failure, bring_up, errored, peer_gone, same_device};
use crate::domain::Brand;
use crate::provider::cm::{BoundDevice, EventParameters, IdOption, PortSpace};
use crate::queue::state::{DeviceState, Init};
use crate::queue::transport::{Reliable, ReliableConnection};
use crate::queue::{AnyQueuePair, QueuePair};
use crate::types::{AckTimeout, ReadDepth};
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

/// An identifier that is bound to nothing yet.
///
/// `K` says what it is for: [`Connections`], or [`Datagrams`].
///
/// # Rules
///
/// The compiler enforces each of them; `ui-tests/cm` has programs that break them.
///
/// - N1: a call exists only in the states that allow it.
/// - N2: a step takes its identifier; only its result goes on.
/// - N3: a queue pair that is being connected is out of reach until it is back.
/// - N4: private data fit the call that carries them.
/// - N5: only reliable connections are made by address.
/// - N6: identifiers for connections and for datagrams do not mix.
#[derive(Debug)]
#[doc(alias = "rdma_cm_id")]
pub struct Idle<K = Connections> {
    id: Identifier,
    kind: PhantomData<K>,
}

impl Idle {
    /// A new identifier for a reliable connection.
    ///
    /// `rdma_create_id(3)`, port space `RDMA_PS_TCP`.
    ///
    /// # Errors
    ///
    /// [`CmError::Call`]: no memory or descriptor is left.
    #[doc(alias = "rdma_create_id")]
    pub fn new(channel: &Channel) -> Result<Self, CmError> {
        Ok(Self { id: channel.identifier(PortSpace::Tcp)?, kind: PhantomData })
    }
}

impl Idle<Datagrams> {
    /// A new identifier for datagrams.
    ///
    /// `rdma_create_id(3)`, port space `RDMA_PS_UDP`.
    ///
    /// # Errors
    ///
    /// [`CmError::Call`]: no memory or descriptor is left.
    #[doc(alias = "rdma_create_id")]
    pub fn for_datagrams(channel: &Channel) -> Result<Self, CmError> {
        Ok(Self { id: channel.identifier(PortSpace::Udp)?, kind: PhantomData })
    }
}

impl<K> Idle<K> {
    /// Sets the type of service of the packets: the upper six bits are the differentiated services code point.
    ///
    /// # Errors
    ///
    /// The system refused.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_type_of_service(&mut self, value: u8) -> Result<(), VerbError> {
        self.id.raw.set_option(IdOption::TypeOfService(value))
    }

    /// Lets the identifier bind to a port that another identifier is bound to already. Two listeners never share a
    /// port, even with this option.
    ///
    /// # Errors
    ///
    /// The system refused.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_address(&mut self, is_on: bool) -> Result<(), VerbError> {
        self.id.raw.set_option(IdOption::ReuseAddress(is_on))
    }

    /// Sets how long the queue pair waits for an acknowledgement. By default, rdma_cm takes the timeout from the path.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the timeout is 0 (for ever), which rdma_cm does not tell the peer; or the identifier is for datagrams.
    /// Other errors: the system refused.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&mut self, timeout: AckTimeout) -> Result<(), VerbError> {
        // Refuse 0, which means for ever. Linux would apply it to this side, and would not tell the peer.
        match timeout.value() {
            0 => Err(VerbError::new("rdma_set_option", libc::EINVAL)),
            value => self.id.raw.set_option(IdOption::AckTimeout(value)),
        }
    }

    /// Binds the identifier to an address of this host. Port 0 means any free port.
    ///
    /// `rdma_bind_addr(3)`.
    ///
    /// # Errors
    ///
    /// [`Cause::Call`] with `EADDRINUSE`, `EADDRNOTAVAIL` or `ENODEV`; the text of the error says what to check. The
    /// identifier comes back.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(mut self, address: SocketAddr) -> Result<Bound<K>, Failed<Self>> {
        match self.id.raw.bind(address) {
            Ok(()) => Ok(Bound::new(self.id)),
            Err(error) => Err(Failed { cause: self.id.events.cause_of(error), value: self }),
        }
    }

    /// Starts to resolve the address: first which device and port lead there, then the route. Each of these two steps
    /// takes at most `timeout`.
    ///
    /// `rdma_resolve_addr(3)` and `rdma_resolve_route(3)`.
    ///
    /// # Errors
    ///
    /// [`Cause::Call`]: there is no route, or the address is not that of a host. The identifier comes back.
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve(self, to: SocketAddr, timeout: Duration) -> Result<Resolving<K>, Failed<Self>> {
        self.resolve_by(None, to, timeout)
    }

    /// [`resolve`](Self::resolve), from an address of this host.
    ///
    /// # Errors
    ///
    /// The same as those of [`resolve`](Self::resolve).
    pub fn resolve_from(
        self,
        source: SocketAddr,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Resolving<K>, Failed<Self>> {
        self.resolve_by(Some(source), to, timeout)
    }

    fn resolve_by(
        mut self,
        source: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Resolving<K>, Failed<Self>> {
        match self.id.raw.resolve_addr(source, to, timeout) {
            Ok(()) => {
                self.id.events.set_polled(true);
                Ok(Resolving { id: self.id, phase: Phase::ResolvingAddress, timeout, kind: PhantomData })
            }
            Err(error) => Err(Failed { cause: self.id.events.cause_of(error), value: self }),
        }
    }
}

/// An identifier that resolves an address, and then the route to it. Dropping it gives up at once.
#[derive(Debug)]
pub struct Resolving<K = Connections> {
    pub(super) id: Identifier,
    phase: Phase,
    timeout: Duration,
    kind: PhantomData<K>,
}

impl<K> Resolving<K> {
    /// Waits until the address and the route are resolved, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`Cause::Address`]: the error returns the identifier, which can resolve again (but not bind, since it already
    /// has a port). [`Cause::Route`]; [`Cause::TimedOut`]; [`Cause::DeviceRemoved`]; [`Cause::Call`]: the identifier
    /// has ended.
    pub fn wait(self, timeout: Duration) -> Result<Resolved<K>, Failed<Option<Idle<K>>>> {
        match self.go_on(Patience::of(timeout))? {
            Progress::Done(resolved) => Ok(resolved),
            Progress::Pending(_) => Err(Failed { value: None, cause: Cause::TimedOut(timeout) }),
        }
    }

    /// Checks whether the address and the route are resolved, without waiting.
    ///
    /// # Errors
    ///
    /// The same as those of [`wait`](Self::wait).
    #[allow(clippy::type_complexity, reason = "the type names what comes back")]
    pub fn poll(self) -> Result<Progress<Self, Resolved<K>>, Failed<Option<Idle<K>>>> {
        self.go_on(Patience::None)
    }

    #[allow(clippy::type_complexity, reason = "the type names what comes back")]
    fn go_on(mut self, patience: Patience) -> Result<Progress<Self, Resolved<K>>, Failed<Option<Idle<K>>>> {
        let failed = |cause| Failed { value: None, cause };
        loop {
            let found = next(&self.id.events, self.phase, patience).map_err(|error| failed(Cause::Call(error)))?;
            match found {
                None => return Ok(Progress::Pending(self)),
                Some((Meaning::End(cause @ Cause::Address(_)), _)) => {
                    self.id.events.set_polled(false);
                    return Err(Failed { value: Some(Idle { id: self.id, kind: PhantomData }), cause });
                }
                Some((Meaning::End(cause), _)) => return Err(failed(cause)),
                Some(_) if self.phase == Phase::ResolvingAddress => {
                    self.phase = Phase::ResolvingRoute;
                    let asked = self.id.raw.resolve_route(self.timeout);
                    asked.map_err(|error| failed(self.id.events.cause_of(error)))?;
                }
                Some(_) => {
                    let device = self.id.raw.device();
                    let device = device.ok_or_else(|| failed(Cause::DeviceRemoved))?;
                    self.id.events.set_polled(false);
                    return Ok(Progress::Done(Resolved { id: self.id, device, kind: PhantomData }));
                }
            }
        }
    }
}

/// An identifier that knows the device and the port that lead to the peer.
#[derive(Debug)]
pub struct Resolved<K = Connections> {
    pub(super) id: Identifier,
    pub(super) device: BoundDevice,
    kind: PhantomData<K>,
}

impl<K> Resolved<K> {
    /// The name of the device that leads to the peer: the queue pair must be one of that device.
    pub fn device(&self) -> &str {
        &self.device.name
    }

    /// The port of that device, from 1.
    pub fn port(&self) -> u8 {
        self.device.port
    }

    #[cfg(feature = "aio")]
    pub(crate) fn is_iwarp(&self) -> bool {
        self.device.is_iwarp
    }

    /// The address of this side.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.raw.local_address()
    }
}

impl Resolved {
    /// Asks the peer for a connection. If the peer's first message needs a receive, post one before this call.
    ///
    /// `rdma_connect(3)`. This returns at once. On iWARP, a thread of the library calls `rdma_connect`, which connects
    /// a TCP stream. If `rdma_connect` fails there, [`Connecting::wait`] returns the error.
    ///
    /// # Errors
    ///
    /// [`Cause::OtherDevice`]; [`Cause::DeviceRemoved`]; [`Cause::Call`]. The identifier and the pair come back.
    #[doc(alias = "rdma_connect")]
    #[allow(clippy::type_complexity, clippy::result_large_err, reason = "the error gives both back")]
    pub fn connect<B: Brand, T: Reliable>(
        self,
        pair: QueuePair<B, Init, T>,
        parameters: &Parameters,
        data: &ConnectData,
    ) -> Result<Connecting<B, T>, Failed<(Self, QueuePair<B, Init, T>)>> {
        if let Err(cause) = same_device(&self.device, &pair) {
            return Err(Failed { value: (self, pair), cause });
        }
        // Check for a removal here, while this function can still give the identifier and the pair back. On iWARP
        // another thread calls `rdma_connect` and owns both, so an error of the call comes after this function has
        // returned.
        if self.id.events.is_removed() {
            return Err(Failed { value: (self, pair), cause: Cause::DeviceRemoved });
        }
        let depths = pair.depths_at_most([parameters.responder_depth, parameters.initiator_depth]);
        let Self { id, device, kind } = self;
        let is_iwarp = device.is_iwarp;
        id.events.set_polled(true);
        let asked = if is_iwarp {
            let without_data = parameters.to_raw(&pair, depths, &[]);
            Asked::by_thread(id, pair, without_data, *data)
        } else {
            let raw = parameters.to_raw(&pair, depths, data.as_bytes());
            Asked::by_this_thread(id, pair, &raw)
        };
        match asked {
            Ok(asked) => Ok(Connecting { asked, parameters: *parameters, depths, is_iwarp }),
            Err(failed) => {
                let (id, pair, error) = *failed;
                id.events.set_polled(false);
                Err(Failed { cause: id.events.cause_of(error), value: (Self { id, device, kind }, pair) })
            }
        }
    }
}

/// An identifier that has asked the peer for a connection.
///
/// Dropping it gives up at once. If the host does not answer and the program sets no deadline, rdma_cm gives
/// up after more than a minute.
///
/// # iWARP
///
/// Until the TCP stream is connected, a thread of the library owns the queue pair. If this side gives up before that,
/// by a timeout or a drop, that thread destroys the pair and drops its receives. It does so when the stream is
/// connected, or when the system gives up (after two minutes or more: `net.ipv4.tcp_syn_retries`).
///
/// Once the stream is connected, the device holds the pair until the peer answers, or for 10 s (Linux) if the peer does
/// not answer. During this time, destroying the pair blocks. So the drop of this value may block, and also the drop of
/// the pair that a timed-out [`wait`](Self::wait) gave back. Drop them on a thread that may block.
#[derive(Debug)]
pub struct Connecting<B, T = ReliableConnection> {
    pub(super) asked: Asked<B, T>,
    parameters: Parameters,
    /// The depths that this side asks for: how many reads it serves, and how many it starts.
    depths: [ReadDepth; 2],
    /// On iWARP the device moves the pair by itself, at any time.
    is_iwarp: bool,
}

impl<B: Brand, T: Reliable> Connecting<B, T> {
    /// Waits until the two sides are connected, at most for `timeout`. After the timeout the request is withdrawn, and
    /// a late answer of the peer is refused.
    ///
    /// # Errors
    ///
    /// [`Cause`]. The pair comes back: in Init if nothing was done to it, else in Error. On iWARP it is in Init only if
    /// there was no TCP stream (the host refused the stream, did not answer, or cannot be reached), and the provider
    /// promises that [this spares the pair](crate::device::Promises::failed_connects_spare_pairs). On iWARP the pair
    /// does not come back ([`AnyQueuePair::Vacant`]) if this call gives up while TCP still connects.
    pub fn wait(self, timeout: Duration) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
        match self.go_on(Patience::of(timeout))? {
            Progress::Done(connection) => Ok(connection),
            Progress::Pending(connecting) => Err(connecting.give_up(Cause::TimedOut(timeout))),
        }
    }

    /// Checks whether the two sides are connected, without waiting.
    ///
    /// # Errors
    ///
    /// The same as those of [`wait`](Self::wait).
    #[allow(clippy::type_complexity, reason = "the type names what comes back")]
    pub fn poll(self) -> Result<Progress<Self, Connection<B, T>>, Failed<AnyQueuePair<B, T>>> {
        self.go_on(Patience::None)
    }

    #[allow(clippy::type_complexity, reason = "the type names what comes back")]
    fn go_on(self, patience: Patience) -> Result<Progress<Self, Connection<B, T>>, Failed<AnyQueuePair<B, T>>> {
        let (found, event) = match next(&self.asked.events, Phase::Connecting, patience) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Progress::Pending(self)),
            Err(error) => return Err(self.give_up(Cause::Call(error))),
        };
        match found {
            // On iWARP, the event of a removal can come while another thread is still in `rdma_connect`. `join` would
            // wait for that thread, so call `give_up`, which does not wait. At every other end, `rdma_connect` has
            // returned or soon returns, so the next arm calls `join`.
            Meaning::End(cause @ Cause::DeviceRemoved) => Err(self.give_up(cause)),
            Meaning::End(cause) => {
                let (id, pair) = self.asked.join();
                Err(Failed::ending(id, after_failure(pair, self.is_iwarp), cause))
            }
            Meaning::NotAsked(error) => Err(self.not_asked(error)),
            Meaning::Respond => self.respond(event.parameters).map(Progress::Done),
            // iWARP: the connection is established. The device itself has moved the pair to Ready To Send.
            _ => self.adopt(event.parameters).map(Progress::Done),
        }
    }

    /// Withdraws the request.
    pub(crate) fn give_up(self, cause: Cause) -> Failed<AnyQueuePair<B, T>> {
        match self.asked.join_if_returned() {
            Some((id, pair)) => Failed::ending(id, after_failure(pair, self.is_iwarp), cause),
            None => Failed { value: AnyQueuePair::Vacant, cause },
        }
    }

    /// iWARP: the thread's call of `rdma_connect` has failed.
    fn not_asked(self, error: VerbError) -> Failed<AnyQueuePair<B, T>> {
        let (id, pair) = self.asked.join();
        let (cause, had_stream) = match error.errno() {
            libc::ECONNREFUSED => (Cause::rejected(-libc::ECONNREFUSED, Vec::new()), false),
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => (id.events.cause_of(error), false),
            // TCP was connected, and then the listener ended.
            libc::ECONNRESET | libc::EPIPE => (Cause::PeerGone(error), true),
            _ => (id.events.cause_of(error), true),
        };
        // ASSUMPTION: if no TCP stream was made, and the provider gives the promise (`is_spared_by_failed_connects`),
        // the device leaves the pair alone, now and later. The query is an additional check: if the device has moved
        // the pair all the same, the query perhaps shows that.
        let is_moved =
            had_stream || !pair.is_spared_by_failed_connects() || matches!(pair.query_state(), Ok(DeviceState::Error));
        Failed::ending(id, after_failure(pair, is_moved), cause)
    }

    /// The peer has accepted: brings the pair up and establishes the connection.
    fn respond(self, answer: EventParameters) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
        let Self { asked, parameters, depths: [serves, starts], .. } = self;
        let (mut id, pair) = asked.join();
        let [serves, starts] = [agreed(serves, answer.responder_resources), agreed(starts, answer.initiator_depth)];
        // If the peer has ended since its answer, the calls below fail. Then `why` takes the event with the cause.
        let up = match bring_up(&*id.raw, pair, [serves, starts], parameters.min_rnr_timer) {
            Ok(up) => up,
            Err(Failed { value, cause }) => {
                let cause =
                    if matches!(cause, Cause::PeerGone(_)) { why(&id.events, Phase::Connecting, cause) } else { cause };
                return Err(Failed::ending(id, value, cause));
            }
        };
        if let Err(error) = id.raw.establish() {
            let cause = why(&id.events, Phase::Connecting, peer_gone(error));
            return Err(Failed::ending(id, errored(up), cause));
        }
        Ok(Connection::new(up, id, PeerData(answer.private_data)))
    }

    /// Takes over a pair that the device has connected by itself.
    fn adopt(self, answer: EventParameters) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
        let Self { asked, depths: [_, starts], .. } = self;
        let (id, pair) = asked.join();
        let theirs = if pair.swaps_reply_depths() { answer.responder_resources } else { answer.initiator_depth };
        match pair.moved_by_cm(agreed(starts, theirs)) {
            Ok(pair) => Ok(Connection::new(pair, id, PeerData(answer.private_data))),
            // The pair is not in Ready To Send. Perhaps the peer has ended since its answer.
            Err(error) => {
                let cause = why_not_adopted(&id.events, Phase::Connecting, error.source);
                Err(Failed::ending(id, errored(error.queue_pair), cause))
            }
        }
    }
}

/// The smaller of this side's depth and the peer's.
fn agreed(ours: ReadDepth, theirs: u8) -> ReadDepth {
    ours.min(ReadDepth::saturating(theirs.into()))
}
