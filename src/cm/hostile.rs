//! Hostile peers: they make calls of rdma_cm that the types of this module do not allow. At worst the connection with
//! the hostile peer fails. The listener goes on to serve other peers.

use super::*;
use crate::provider::cm::{Parameters as RawParameters, RawChannel, RawEvent, RawEventKind as Kind};
use crate::request::WorkRequest;
use crate::{Buffer, Checked, Limits, Poller, PostError, ProtectionDomain, RemoteRead};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::thread;

const WAIT: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

/// The side that listens, which the hostile peers attack.
struct Victim {
    context: Context,
    domain: ProtectionDomain<Checked>,
    poller: Poller<Checked>,
    queue: crate::CompletionQueue<Checked>,
    listener: Listener,
    at: SocketAddr,
}

impl Victim {
    fn new(context: Context) -> Self {
        let domain = context.checked_domain().unwrap();
        let (queue, poller) = domain.completion_queue(1024).unwrap();
        let port = context.active_port().unwrap();
        let own = port.gids().iter().find_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped());
        // For a real iWARP device, `INTERLOCK_ADDRESS` must be set: the GIDs of the device contain no IP addresses.
        let own: IpAddr = match std::env::var("INTERLOCK_ADDRESS") {
            Ok(address) => address.parse().unwrap(),
            Err(_) => own.unwrap().into(),
        };
        let listener = listen(&context, (own, 0)).unwrap();
        let at = listener.local_address().unwrap();
        Self { context, domain, poller, queue, listener, at }
    }

    fn pair(&self) -> QueuePair<Checked, Init> {
        let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
        self.domain.reliable(&self.queue, &limits).unwrap().into_init(&self.context.active_port().unwrap()).unwrap()
    }

    fn request(&mut self) -> Request {
        self.listener.next(WAIT).unwrap()
    }

    /// The request of a peer that has called `connect`; `None` if rdma_cm or the device refused the request before the
    /// victim could take it.
    fn request_of(&mut self, peer: &Peer) -> Option<Request> {
        let start = Instant::now();
        loop {
            if let Some(request) = self.listener.poll().unwrap() {
                return Some(request);
            }
            if let Some(event) = Arc::clone(&peer.channel).take_event(2).unwrap() {
                let refusals = [Kind::REJECTED, Kind::UNREACHABLE, Kind::CONNECT_ERROR];
                assert!(refusals.contains(&event.kind), "{event:?}");
                return None;
            }
            assert!(start.elapsed() < WAIT, "neither a request nor a refusal");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn accept(&self, request: Request) -> Result<Accepting<Checked>, Failed<AnyQueuePair<Checked>>> {
        request.accept(self.pair(), &Parameters::default(), &AcceptData::none())
    }

    /// Checks that the victim still serves an honest peer.
    fn serves_a_friend(&mut self) {
        let mark = ConnectData::framed(b"friend").unwrap();
        let (at, pair) = (self.at, self.pair());
        let buffer = |domain: &ProtectionDomain<Checked>| -> Buffer<Checked> { domain.buffer(8).unwrap() };
        let (message, place) = (buffer(&self.domain), buffer(&self.domain));
        thread::scope(|scope| {
            let client = scope.spawn(move || connect(at, pair, &mark, WAIT).unwrap());
            let request = loop {
                // Requests of hostile peers perhaps come before the friend's request. The drop of a request rejects it.
                let request = self.request();
                if request.data().framed() == Some(&b"friend"[..]) {
                    break request;
                }
            };
            let mut pair = self.pair();
            pair.post_receive(place).unwrap();
            let accepting = request.accept(pair, &Parameters::default(), &AcceptData::none()).unwrap();
            let mut client = client.join().unwrap();
            let _server = accepting.wait(WAIT).unwrap();
            client.pair.post_send(message).unwrap();
            while !matches!(self.poller.wait(WAIT).unwrap().check().map(|success| success.into_received()), Ok(Ok(_))) {
            }
        });
    }
}

/// A peer that uses rdma_cm directly.
struct Peer {
    channel: Arc<dyn RawChannel>,
    id: Box<dyn RawId>,
}

impl Peer {
    /// A peer whose identifier has resolved the victim's address.
    fn of(victim: &Victim) -> Self {
        let channel = victim.context.0.open_cm().unwrap();
        let id = Arc::clone(&channel).create_id(PortSpace::Tcp, 1).unwrap();
        let mut peer = Self { channel, id };
        peer.id.resolve_addr(None, victim.at, WAIT).unwrap();
        peer.expect(&[Kind::ADDR_RESOLVED]);
        peer.id.resolve_route(WAIT).unwrap();
        peer.expect(&[Kind::ROUTE_RESOLVED]);
        peer
    }

    fn event(&self) -> RawEvent {
        let start = Instant::now();
        loop {
            if let Some(event) = Arc::clone(&self.channel).take_event(2).unwrap() {
                return event;
            }
            assert!(start.elapsed() < WAIT, "no event");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn expect(&self, kinds: &[Kind]) -> RawEvent {
        let event = self.event();
        assert!(kinds.contains(&event.kind), "{event:?}");
        event
    }

    /// Establishes the connection after the victim's accept, as an honest peer does.
    fn finish(&mut self) {
        if self.expect(&[Kind::CONNECT_RESPONSE, Kind::ESTABLISHED]).kind == Kind::CONNECT_RESPONSE {
            self.id.establish().unwrap();
        }
    }
}

fn offer(pair: &QueuePair<Checked, Init>, private_data: &'static [u8]) -> RawParameters<'static> {
    RawParameters {
        private_data,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 5,
        rnr_retry_count: 6,
        has_shared_receives: false,
        queue_pair: pair.number().value(),
        qkey: 0,
    }
}

/// The peer sends false read depths: how many reads it serves, and how many it starts.
fn lies_about_depths(victim: &mut Victim) {
    let region = victim.domain.register::<RemoteRead, _>(vec![0_u64; 1]).unwrap();
    for depths in [[0, 0], [255, 255], [255, 0], [0, 255], [16, 16]] {
        let (mut peer, pair) = (Peer::of(victim), victim.pair());
        let [responder_resources, initiator_depth] = depths;
        let lie = RawParameters { responder_resources, initiator_depth, ..offer(&pair, b"") };
        // rdma_cm or the device is allowed to refuse these depths. Then no request reaches the victim.
        if peer.id.connect(&lie).is_err() {
            continue;
        }
        let Some(request) = victim.request_of(&peer) else { continue };
        let Ok(accepting) = victim.accept(request) else { continue };
        peer.finish();
        let mut connection = accepting.wait(WAIT).unwrap();
        if !victim.context.is_iwarp() {
            let (device, agreed) = (victim.context.attributes().unwrap(), connection.pair.query().unwrap());
            let raw = victim.context.0.query_device().unwrap();
            assert!(i32::from(agreed.initiator_depth.value()) <= raw.max_qp_init_rd_atom, "{device:?}");
            assert!(agreed.initiator_depth.value() <= responder_resources, "{depths:?}");
            assert!(agreed.responder_depth.value() <= initiator_depth, "{depths:?}");
        }
        if responder_resources == 0 {
            let read = WorkRequest::read(victim.domain.buffer(8).unwrap(), &region.remote());
            let refused = connection.pair.post(read).map(drop).unwrap_err();
            assert!(matches!(refused, PostError::Flawed { .. }), "{refused}");
        }
    }
}

/// The peer sends no private data, as much as rdma_cm takes, too much, or data with a false length in their header.
fn lies_about_private_data(victim: &mut Victim) {
    static LONG: [u8; 255] = [b'x'; 255];
    for data in [b"", &LONG[..1], &LONG[..56], &LONG[..57], &LONG, b"IP\xff", b"IP\x36short", b"IP"] {
        let (mut peer, pair) = (Peer::of(victim), victim.pair());
        if peer.id.connect(&offer(&pair, data)).is_err() {
            assert!(data.len() > 56, "{data:?}");
            continue;
        }
        let Some(request) = victim.request_of(&peer) else {
            assert!(data.len() > 56, "{data:?}");
            continue;
        };
        let seen = request.data();
        assert!(seen.padded().starts_with(data) && seen.padded().len() <= 255);
        assert!(seen.framed().unwrap_or_default().is_empty(), "{data:?}");
        let accepting = victim.accept(request).unwrap();
        peer.finish();
        drop(accepting.wait(WAIT).unwrap());
    }
}

/// The peer names a queue pair that does not exist.
fn lies_about_its_pair(victim: &mut Victim) {
    for number in [0, 0x00ff_fffe, u32::MAX] {
        let (mut peer, pair) = (Peer::of(victim), victim.pair());
        if peer.id.connect(&RawParameters { queue_pair: number, ..offer(&pair, b"") }).is_err() {
            continue;
        }
        let Some(request) = victim.request_of(&peer) else { continue };
        let Ok(accepting) = victim.accept(request) else { continue };
        peer.finish();
        if let Ok(connection) = accepting.wait(WAIT) {
            drop(connection.disconnect().unwrap());
        }
    }
}

/// A moment at which the peer ends, or goes silent.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
enum Moment {
    BeforeTheRequestIsTaken,
    BeforeTheAccept,
    AfterTheAccept,
    AfterTheAnswer,
    AfterTheConnection,
}

/// The peer ends, disconnects or goes silent at each moment.
fn ends_in_between(victim: &mut Victim) {
    use Moment::{AfterTheAccept, AfterTheAnswer, AfterTheConnection, BeforeTheAccept, BeforeTheRequestIsTaken};
    let moments = [BeforeTheRequestIsTaken, BeforeTheAccept, AfterTheAccept, AfterTheAnswer, AfterTheConnection];
    // `how` is what the peer does at `moment`. 0: it destroys its identifier and its channel, as when its process ends.
    // 1: it calls `rdma_disconnect`. 2: it does nothing from then on.
    for (moment, how) in moments.into_iter().flat_map(|moment| [0, 1, 2].map(|how| (moment, how))) {
        let (peer, pair) = (Peer::of(victim), victim.pair());
        let mut peer = Some(peer);
        peer.as_mut().unwrap().id.connect(&offer(&pair, b"")).unwrap();
        let mut end = |at| {
            if at == moment && how == 0 {
                peer = None;
            } else if at == moment && how == 1 {
                // An error is ignored: rdma_cm is allowed to refuse a disconnect at this moment.
                let _ = peer.as_mut().unwrap().id.disconnect();
            } else if at == AfterTheAccept
                && moment > AfterTheAccept
                && let Some(peer) = &mut peer
            {
                let answer = peer.expect(&[Kind::CONNECT_RESPONSE, Kind::ESTABLISHED]).kind;
                if moment == AfterTheConnection && answer == Kind::CONNECT_RESPONSE {
                    peer.id.establish().unwrap();
                }
            }
        };
        end(BeforeTheRequestIsTaken);
        // On iWARP, the end of the peer's TCP stream can remove a request that nobody has taken.
        let may_be_lost = moment == BeforeTheRequestIsTaken && victim.context.is_iwarp();
        let request = match victim.listener.next(if may_be_lost { SHORT } else { WAIT }) {
            Ok(request) => request,
            Err(error) => {
                assert!(may_be_lost, "{moment:?} {how}: {error}");
                continue;
            }
        };
        end(BeforeTheAccept);
        let accepting = match victim.accept(request) {
            Ok(accepting) => accepting,
            Err(failed) => {
                assert!(moment <= BeforeTheAccept && how < 2, "{moment:?} {how}: {failed:?}");
                assert!(matches!(failed.cause, Cause::PeerGone(_)), "{moment:?} {how}: {failed:?}");
                continue;
            }
        };
        end(AfterTheAccept);
        end(AfterTheAnswer);
        match accepting.wait(if how == 0 || moment == AfterTheConnection { WAIT } else { SHORT }) {
            Err(failed) => {
                let is_known = match failed.cause {
                    // The peer has kept its identifier, but has not established the connection. If `how` is 1, the peer
                    // has called `rdma_disconnect`, which perhaps has no effect before the connection is established.
                    Cause::TimedOut(_) => how > 0 && moment != AfterTheConnection,
                    Cause::Rejected { .. } | Cause::Disconnected | Cause::Failed(_) => how < 2,
                    _ => false,
                };
                assert!(is_known, "{moment:?} {how}: {failed:?}");
                assert!(matches!(failed.value, AnyQueuePair::Errored(_)), "{failed:?}");
            }
            // On iWARP, the victim's own accept connects the victim's side, even if the peer has not established its
            // side. A peer that disconnects before `AfterTheAnswer` has perhaps nothing to disconnect, and then the
            // victim gets no event of the end.
            Ok(mut connection) => {
                end(AfterTheConnection);
                let must_end = how == 0 || how == 1 && moment >= AfterTheAnswer;
                let ended = connection.wait_end(if must_end { WAIT } else { SHORT }).unwrap();
                let is_right =
                    if must_end { matches!(ended, Some(Cause::Disconnected)) } else { how == 1 || ended.is_none() };
                assert!(is_right, "{moment:?} {how}: {ended:?}");
            }
        }
    }
}

fn attack(context: Context) {
    let mut victim = Victim::new(context);
    for attack in [lies_about_depths, lies_about_private_data, lies_about_its_pair, ends_in_between] {
        attack(&mut victim);
        victim.serves_a_friend();
    }
}

#[cfg(feature = "soft")]
#[test]
fn a_hostile_peer_of_a_soft_device_hurts_only_itself() {
    use crate::soft::{Fabric, Profile};
    for profile in [Profile::Specification, Profile::Siw] {
        attack(Context::open_on(&Fabric::with_profile(profile), "dev0").unwrap());
    }
}

#[test]
#[ignore = "needs a real device: ./x test rxe, ./x test siw"]
fn a_hostile_peer_over_rdma_core_hurts_only_itself() {
    attack(Context::open_default().unwrap());
}
