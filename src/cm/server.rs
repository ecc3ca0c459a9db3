//! The side that listens and accepts.

use super::channel::Identifier;
use super::connection::Connection;
use super::error::{Cause, CmError, Failed};
use super::meaning::{Meaning, Phase};
use super::parameters::Parameters;
use super::private_data::{AcceptData, PeerData, RejectData};
use super::wait::{Patience, next, why_not_adopted};
use super::{Connections, Progress, after_failure, bring_up, errored, not_for_iwarp, same_device, someone_gone};
use crate::domain::Brand;
use crate::provider::cm::{BoundDevice, EventParameters};
use crate::queue::state::{Init, ReadyToSend};
use crate::queue::transport::{Reliable, ReliableConnection};
use crate::queue::{AnyQueuePair, QueuePair};
use crate::types::ReadDepth;
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

/// An identifier that is bound to an address of this host.
#[derive(Debug)]
pub struct Bound<K = Connections> {
    pub(super) id: Identifier,
    kind: PhantomData<K>,
}

/// How many requests may wait in the box of a listener; more are rejected.
const WAITING_REQUESTS: usize = 1024;

impl<K> Bound<K> {
    pub(super) fn new(id: Identifier) -> Self {
        Self { id, kind: PhantomData }
    }

    /// The address that the identifier is bound to, with the actual port.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.raw.local_address()
    }

    /// Listens for connect requests. The kernel holds at most `backlog` of them until they are read; 0 means the most
    /// that the system allows. The kernel drops further requests, and their clients try again.
    ///
    /// `rdma_listen(3)`.
    ///
    /// # Errors
    ///
    /// [`Cause::Call`] with `EADDRINUSE`: another listener has the port. [`Cause::NotOnIwarp`]: the identifier is one
    /// for datagrams, and the address is that of an iWARP device. [`Cause::DeviceRemoved`]. The identifier comes back.
    #[doc(alias = "rdma_listen")]
    pub fn listen(mut self, backlog: u32) -> Result<Listener<K>, Failed<Self>> {
        if let Err(cause) = not_for_iwarp(&self.id) {
            return Err(Failed { value: self, cause });
        }
        self.id.events.hold_requests(WAITING_REQUESTS);
        match self.id.raw.listen(backlog) {
            Ok(()) => {
                self.id.events.set_polled(true);
                Ok(Listener { id: self.id, is_removed: false, kind: PhantomData })
            }
            Err(error) => Err(Failed { cause: self.id.events.cause_of(error), value: self }),
        }
    }
}

/// Takes connect requests. Dropping the listener rejects the requests that were not taken. Connections that were
/// accepted go on.
#[derive(Debug)]
pub struct Listener<K = Connections> {
    pub(super) id: Identifier,
    /// Its device was removed, so no request will come.
    is_removed: bool,
    kind: PhantomData<K>,
}

impl<K> Listener<K> {
    /// The address that the listener is bound to, with the actual port.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.raw.local_address()
    }

    /// Waits for the next request, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`CmError::TimedOut`], [`CmError::DeviceRemoved`].
    pub fn next(&mut self, timeout: Duration) -> Result<Request<K>, CmError> {
        self.take(Patience::of(timeout))?.ok_or(CmError::TimedOut(timeout))
    }

    /// Returns the next request if one has arrived.
    ///
    /// # Errors
    ///
    /// [`CmError::DeviceRemoved`].
    pub fn poll(&mut self) -> Result<Option<Request<K>>, CmError> {
        self.take(Patience::None)
    }

    fn take(&mut self, patience: Patience) -> Result<Option<Request<K>>, CmError> {
        // After the removal of the device no request comes, so do not wait for one. But still call `next`, since it
        // also takes the events of the other identifiers from the channel. Otherwise the descriptor of the channel
        // could stay readable.
        let patience = if self.is_removed { Patience::None } else { patience };
        loop {
            match next(&self.id.events, Phase::Listening, patience)? {
                None if self.is_removed => return Err(CmError::DeviceRemoved),
                None => return Ok(None),
                Some((Meaning::End(_), _)) => {
                    self.is_removed = true;
                    return Err(CmError::DeviceRemoved);
                }
                Some((_, event)) => {
                    let Some(new) = event.request else { continue };
                    let id = Identifier::of_request(new, &self.id);
                    // `None`: the device that received the request was removed. Ignore such a request.
                    let Some(device) = id.raw.device() else { continue };
                    let EventParameters { private_data, responder_resources, initiator_depth, .. } = event.parameters;
                    let asked = [responder_resources, initiator_depth].map(|depth| ReadDepth::saturating(depth.into()));
                    let data = PeerData(private_data);
                    return Ok(Some(Request { id, device, asked, data, kind: PhantomData }));
                }
            }
        }
    }
}

/// A peer's request for a connection, or for the queue pair that takes the peer's datagrams. Dropping it rejects the
/// request.
///
/// The peer may have ended in the meantime; [`accept`](Request::accept) reports that.
#[derive(Debug)]
pub struct Request<K = Connections> {
    pub(super) id: Identifier,
    pub(super) device: BoundDevice,
    /// The depths that the peer asks for, as this side sees them: how many reads this side is to serve, and how many it
    /// may start.
    asked: [ReadDepth; 2],
    data: PeerData,
    kind: PhantomData<K>,
}

impl<K> Request<K> {
    /// The private data that the peer sent with its request.
    pub fn data(&self) -> &PeerData {
        &self.data
    }

    /// The name of the device that the request came by: the queue pair must be one of that device.
    pub fn device(&self) -> &str {
        &self.device.name
    }

    /// The port of that device, from 1.
    pub fn port(&self) -> u8 {
        self.device.port
    }

    /// The address of the peer.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.id.raw.peer_address()
    }

    /// The address of this side that the peer asked for.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.raw.local_address()
    }
}

impl Request {
    /// Rejects the request, with data for the peer.
    ///
    /// `rdma_reject(3)`.
    ///
    /// # Errors
    ///
    /// The peer has already ended.
    #[doc(alias = "rdma_reject")]
    pub fn reject(mut self, data: &RejectData) -> Result<(), VerbError> {
        self.id.raw.reject(data.as_bytes())
    }

    /// Brings the pair to Ready To Send and accepts the request. If the peer's first message needs a receive, post one
    /// before this call.
    ///
    /// `rdma_accept(3)`. The request is consumed in any case: if the accept fails, the peer is told that its request
    /// was rejected.
    ///
    /// # Errors
    ///
    /// [`Cause::OtherDevice`]; [`Cause::PeerGone`]; [`Cause::DeviceRemoved`]; [`Cause::Call`]; [`Cause::Pair`]. The
    /// pair comes back: in Init if nothing was done to it, else in Error.
    #[doc(alias = "rdma_accept")]
    pub fn accept<B: Brand, T: Reliable>(
        self,
        pair: QueuePair<B, Init, T>,
        parameters: &Parameters,
        data: &AcceptData,
    ) -> Result<Accepting<B, T>, Failed<AnyQueuePair<B, T>>> {
        let Self { mut id, device, asked, data: peer_data, .. } = self;
        if let Err(cause) = same_device(&device, &pair) {
            return Err(Failed::ending(id, pair.into(), cause));
        }
        let [serves, starts] = pair.depths_at_most([parameters.responder_depth, parameters.initiator_depth]);
        let depths = [serves.min(asked[0]), starts.min(asked[1])];
        let pair = match device.is_iwarp {
            true => Rising::ByDevice(pair, depths[1]),
            false => match bring_up(&*id.raw, pair, depths, parameters.min_rnr_timer) {
                Ok(pair) => Rising::Up(pair),
                Err(Failed { value, cause }) => return Err(Failed::ending(id, value, cause)),
            },
        };
        let accepted = match &pair {
            Rising::Up(pair) => id.raw.accept(&parameters.to_raw(pair, depths, data.as_bytes())),
            Rising::ByDevice(pair, _) => id.raw.accept(&parameters.to_raw(pair, depths, data.as_bytes())),
        };
        match accepted {
            Ok(()) => {
                id.events.set_polled(true);
                Ok(Accepting { id, pair, data: peer_data })
            }
            // An iWARP device moves the pair out of Init before it answers the peer. So the pair has perhaps left Init
            // although the accept has failed, and `down` moves it to Error.
            Err(error) => {
                let cause = match &pair {
                    Rising::Up(pair) => someone_gone(error, pair),
                    Rising::ByDevice(pair, _) => someone_gone(error, pair),
                };
                Err(Failed::ending(id, pair.down(), cause))
            }
        }
    }
}

/// The pair of an accept: in Ready To Send, or still to be moved there by the device.
#[derive(Debug)]
pub(super) enum Rising<B, T> {
    Up(QueuePair<B, ReadyToSend, T>),
    /// On iWARP the device moves the pair by itself. The depth is how many reads this side may have outstanding then.
    ByDevice(QueuePair<B, Init, T>, ReadDepth),
}

/// A request that was accepted, until the peer is ready.
#[derive(Debug)]
pub struct Accepting<B, T = ReliableConnection> {
    pub(super) id: Identifier,
    pub(super) pair: Rising<B, T>,
    data: PeerData,
}

impl<B: Brand, T: Reliable> Accepting<B, T> {
    /// Waits until the two sides are connected, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`Cause`]. The pair comes back in Error.
    pub fn wait(self, timeout: Duration) -> Result<Connection<B, T>, Failed<AnyQueuePair<B, T>>> {
        match self.go_on(Patience::of(timeout))? {
            Progress::Done(connection) => Ok(connection),
            Progress::Pending(this) => Err(this.give_up(Cause::TimedOut(timeout))),
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

    /// Gives up the connection. The pair comes back, in Error.
    pub(crate) fn give_up(self, cause: Cause) -> Failed<AnyQueuePair<B, T>> {
        Failed::ending(self.id, self.pair.down(), cause)
    }

    /// Tells rdma_cm that a message of the peer has arrived. The message shows that the peer is connected, even if the
    /// last packet of the handshake was lost.
    ///
    /// `rdma_notify(3)`, `IBV_EVENT_COMM_EST`.
    #[doc(alias = "rdma_notify")]
    pub fn message_arrived(&mut self) {
        // An error is ignored: `notify_established` fails if the connection is established already.
        let _ = self.id.raw.notify_established();
    }

    #[allow(clippy::type_complexity, reason = "the type names what comes back")]
    fn go_on(self, patience: Patience) -> Result<Progress<Self, Connection<B, T>>, Failed<AnyQueuePair<B, T>>> {
        match next(&self.id.events, Phase::Accepting, patience) {
            Ok(None) => return Ok(Progress::Pending(self)),
            Ok(Some((Meaning::End(cause), _))) => return Err(self.give_up(cause)),
            Ok(Some(_established)) => {}
            Err(error) => return Err(self.give_up(Cause::Call(error))),
        }
        let pair = match self.pair {
            Rising::Up(pair) => pair,
            Rising::ByDevice(pair, starts) => match pair.moved_by_cm(starts) {
                Ok(pair) => pair,
                // The pair is not in Ready To Send. Perhaps the peer has ended after the connection was established.
                Err(error) => {
                    let cause = why_not_adopted(&self.id.events, Phase::Accepting, error.source);
                    return Err(Failed::ending(self.id, errored(error.queue_pair), cause));
                }
            },
        };
        Ok(Progress::Done(Connection::new(pair, self.id, self.data)))
    }
}

impl<B: Brand, T: Reliable> Rising<B, T> {
    /// Moves the pair to Error.
    pub(super) fn down(self) -> AnyQueuePair<B, T> {
        match self {
            Self::Up(pair) => errored(pair),
            Self::ByDevice(pair, _) => after_failure(pair, true),
        }
    }
}
