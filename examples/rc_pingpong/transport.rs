//! The differences between transports.

use super::PingPong;
use super::by_cm::{self, Meet};
use super::common::fault::{Doing, Fault};
use interlock::attributes::{
    InitAttributes, PeerPath, PeerRights, RtrAttributes, RtsAttributes, UnreliableRtrAttributes,
};
use interlock::cm::Connection;
use interlock::datagram::Recipient;
use interlock::error::CreateError;
use interlock::number::{AckTimeout, Mtu, Qkey, ReadDepth, RetryCount, RnrRetry, RnrTimer};
use interlock::transport::{OwnReceives, Transport};
use interlock::{
    Buffer, CompletionQueue, Endpoint, Init, Limits, Port, PostError, ProtectionDomain, QueuePair, ReadyToSend,
    ReliableConnection, Reset, UnreliableConnection, UnreliableDatagram, WorkId,
};
use std::time::Duration;

/// A pair in Ready To Send. On a transport with connections, it is connected.
pub(crate) type Ready<T> = QueuePair<PingPong, ReadyToSend, T>;

/// A pair that rdma_cm has connected, and what a send needs.
pub(crate) type ByCm<T> = (Connection<PingPong, T>, <T as Game>::Peer);

/// The objects that a pair is made of, and the address of its peer.
pub(crate) struct Route<'route> {
    pub(crate) domain: &'route ProtectionDomain<PingPong>,
    pub(crate) port: &'route Port,
    pub(crate) peer: &'route Endpoint,
    pub(crate) path: PeerPath,
    pub(crate) mtu: Mtu,
}

/// A transport that the game can be played on.
pub(crate) trait Game: Transport + OwnReceives + Sized {
    /// The two letters of the transport, as in `rc_pingpong`.
    const LETTERS: &'static str;
    /// The default of the C program.
    const USUAL_SIZE: u32;
    /// Whether the two sides agree on a path MTU. If not, the MTU of the port limits a message.
    const HAS_PATH_MTU: bool;
    /// Whether rdma_cm connects it.
    const HAS_CM: bool = false;
    /// The length of the header before the message in a receive.
    const HEADER_BYTES: usize = 0;
    /// Why a message may be missing although the peer works.
    const LOSS: &'static str = " (a lost message is not sent again, and one that is too long for \
                                its receive is lost: give both sides the same -s)";
    /// The address that a send to the peer needs.
    type Peer;

    fn create(
        domain: &ProtectionDomain<PingPong>,
        queue: &CompletionQueue<PingPong>,
        limits: &Limits,
    ) -> Result<QueuePair<PingPong, Reset, Self>, CreateError>;

    fn init(port: &Port) -> Self::InitAttributes;

    /// Uses the attributes of the C program, except for the retries.
    fn connect(pair: QueuePair<PingPong, Init, Self>, route: &Route<'_>) -> Result<(Ready<Self>, Self::Peer), Fault>;

    /// Connects pairs by rdma_cm instead, where [`HAS_CM`](Self::HAS_CM).
    fn by_cm(_: Vec<QueuePair<PingPong, Init, Self>>, _: Meet<'_>, _: Duration) -> Result<Vec<ByCm<Self>>, Fault> {
        Err(Fault::new("rdma_cm connects reliable connections only"))
    }

    /// Waits until the server has ended a connection by rdma_cm, at most for `patience`.
    fn part(_: Connection<PingPong, Self>, _patience: Duration) -> Result<(), Fault> {
        Ok(())
    }

    fn send(
        pair: &mut Ready<Self>,
        message: Buffer<PingPong>,
        peer: &Self::Peer,
    ) -> Result<WorkId, PostError<Buffer<PingPong>>>;
}

/// The peer only sends, so it gets no rights to this side's memory.
fn sends_only(port: &Port) -> InitAttributes {
    InitAttributes { port: port.clone(), pkey_index: 0, peer_rights: PeerRights::NONE }
}

impl Game for ReliableConnection {
    const LETTERS: &'static str = "rc";
    const USUAL_SIZE: u32 = 4096;
    const HAS_PATH_MTU: bool = true;
    const HAS_CM: bool = true;
    const LOSS: &'static str = "";
    type Peer = ();

    fn create(
        domain: &ProtectionDomain<PingPong>,
        queue: &CompletionQueue<PingPong>,
        limits: &Limits,
    ) -> Result<QueuePair<PingPong, Reset, Self>, CreateError> {
        domain.reliable(queue, limits)
    }

    fn init(port: &Port) -> InitAttributes {
        sends_only(port)
    }

    fn connect(pair: QueuePair<PingPong, Init, Self>, route: &Route<'_>) -> Result<(Ready<Self>, ()), Fault> {
        let receive = RtrAttributes {
            path: route.path,
            path_mtu: route.mtu,
            destination: route.peer.queue_pair(),
            receive_psn: route.peer.psn(),
            responder_depth: ReadDepth::new(1)?,
            min_rnr_timer: RnrTimer::new(12)?,
        };
        // If the peer does not answer, the device gives up after about two seconds. With 7 retries, soft-RoCE would
        // never give up.
        let send = RtsAttributes {
            send_psn: pair.psn(),
            timeout: AckTimeout::new(16)?,
            retry_count: RetryCount::new(6)?,
            rnr_retry: RnrRetry::FOREVER,
            initiator_depth: ReadDepth::new(1)?,
        };
        Ok((pair.into_rtr(&receive)?.into_rts(&send)?, ()))
    }

    fn by_cm(
        pairs: Vec<QueuePair<PingPong, Init, Self>>,
        meet: Meet<'_>,
        patience: Duration,
    ) -> Result<Vec<ByCm<Self>>, Fault> {
        Ok(by_cm::connect(pairs, meet, patience)?.into_iter().map(|connection| (connection, ())).collect())
    }

    fn part(mut connection: Connection<PingPong>, patience: Duration) -> Result<(), Fault> {
        connection.wait_end(patience)?;
        Ok(())
    }

    fn send(pair: &mut Ready<Self>, message: Buffer<PingPong>, (): &()) -> Result<WorkId, PostError<Buffer<PingPong>>> {
        pair.post_send(message)
    }
}

impl Game for UnreliableConnection {
    const LETTERS: &'static str = "uc";
    const USUAL_SIZE: u32 = 4096;
    const HAS_PATH_MTU: bool = true;
    type Peer = ();

    fn create(
        domain: &ProtectionDomain<PingPong>,
        queue: &CompletionQueue<PingPong>,
        limits: &Limits,
    ) -> Result<QueuePair<PingPong, Reset, Self>, CreateError> {
        domain.unreliable(queue, limits)
    }

    fn init(port: &Port) -> InitAttributes {
        sends_only(port)
    }

    fn connect(pair: QueuePair<PingPong, Init, Self>, route: &Route<'_>) -> Result<(Ready<Self>, ()), Fault> {
        let receive = UnreliableRtrAttributes {
            path: route.path,
            path_mtu: route.mtu,
            destination: route.peer.queue_pair(),
            receive_psn: route.peer.psn(),
        };
        let send_psn = pair.psn();
        Ok((pair.into_rtr(&receive)?.into_rts(send_psn)?, ()))
    }

    fn send(pair: &mut Ready<Self>, message: Buffer<PingPong>, (): &()) -> Result<WorkId, PostError<Buffer<PingPong>>> {
        pair.post_send(message)
    }
}

impl Game for UnreliableDatagram {
    const LETTERS: &'static str = "ud";
    const USUAL_SIZE: u32 = 1024;
    const HAS_PATH_MTU: bool = false;
    const HEADER_BYTES: usize = 40;
    type Peer = Recipient<PingPong>;

    fn create(
        domain: &ProtectionDomain<PingPong>,
        queue: &CompletionQueue<PingPong>,
        limits: &Limits,
    ) -> Result<QueuePair<PingPong, Reset, Self>, CreateError> {
        domain.datagram(queue, limits)
    }

    /// Uses the Q_Key of the C program, which is the usual one.
    fn init(port: &Port) -> Self::InitAttributes {
        port.into()
    }

    fn connect(
        pair: QueuePair<PingPong, Init, Self>,
        route: &Route<'_>,
    ) -> Result<(Ready<Self>, Recipient<PingPong>), Fault> {
        let handle = route.domain.address_handle(route.port, &route.path).doing("cannot address the peer")?;
        Ok((pair.open()?, Recipient::new(handle, route.peer.queue_pair(), Qkey::USUAL)))
    }

    fn send(
        pair: &mut Ready<Self>,
        message: Buffer<PingPong>,
        peer: &Recipient<PingPong>,
    ) -> Result<WorkId, PostError<Buffer<PingPong>>> {
        pair.post_send_to(message, peer)
    }
}
