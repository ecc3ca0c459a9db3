//! Connections by address, through rdma_cm: the same tests on every device.
#![cfg(feature = "cm")]

use interlock::cm::{
    self, Cause, Channel, ConnectData, Connection, Idle, Listener, Parameters, Progress, RejectData, RejectReason,
    Request, Resolved,
};
use interlock::error::{RequestFlaw, WaitError};
use interlock::number::ReadDepth;
use interlock::state::DeviceState;
use interlock::{AnyQueuePair, Buffer, Checked, PostError, RemoteRead};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use support::{
    Need, PATIENCE, Promise, Side, address, context, is_linux_6_12, lacks, lacks_need, message, on_hardware,
};

const SHORT: Duration = Duration::from_millis(300);

fn listener() -> (Listener, SocketAddr) {
    let context = context();
    let listener = cm::listen(&context, (address(&context), 0)).unwrap();
    let at = listener.local_address().unwrap();
    (listener, at)
}

#[test]
fn two_sides_connect_by_address_and_talk() {
    interlock::domain! { struct Server; }
    interlock::domain! { struct Client; }
    let (mut listener, at) = listener();
    let (is_up, server_is_up) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut side = Side::new(context().named_domain(Server).unwrap());
        let request = listener.next(PATIENCE).unwrap();
        assert_eq!(request.data().framed(), Some(&b"from the client"[..]));
        let mut pair = side.take();
        pair.post_receive(side.domain.buffer(64).unwrap()).unwrap();
        let data = cm::AcceptData::framed(b"from the server").unwrap();
        let accepting = request.accept(pair, &Parameters::default(), &data).unwrap();
        let mut connection = accepting.wait(PATIENCE).unwrap();
        is_up.send(()).unwrap();
        assert_eq!(&side.received()[..], b"hello");
        let end = connection.wait_end(PATIENCE).unwrap();
        assert!(matches!(end, Some(Cause::Disconnected)), "{end:?}");
    });
    let mut side = Side::new(context().named_domain(Client).unwrap());
    let data = ConnectData::framed(b"from the client").unwrap();
    let mut connection = cm::connect(at, side.take(), &data, PATIENCE).unwrap();
    assert_eq!(connection.data.framed(), Some(&b"from the server"[..]));
    assert_eq!(connection.peer_address(), Some(at));
    connection.pair.post_send(message(&side.domain, b"hello")).unwrap();
    side.poller.wait(PATIENCE).unwrap().check().unwrap();
    // Disconnect only after the server's `accepting.wait` has returned. On iWARP, that call would fail if this side
    // ended earlier.
    server_is_up.recv().unwrap();
    let mut ended = connection.disconnect().unwrap();
    ended.pair.drain(&mut side.poller, PATIENCE, drop).unwrap();
    server.join().unwrap();
}

/// CM008
#[test]
fn a_port_where_nobody_listens_rejects() {
    interlock::domain! { struct Client; }
    let (listener, at) = listener();
    drop(listener);
    let mut side = Side::new(context().named_domain(Client).unwrap());
    let failed = cm::connect(at, side.take(), &ConnectData::none(), PATIENCE).unwrap_err();
    let Cause::Rejected { reason, .. } = &failed.cause else { panic!("{failed:?}") };
    assert!(*reason == RejectReason::NO_SUCH_SERVICE || reason.0 < 0, "{failed:?}");
    match failed.value {
        AnyQueuePair::Init(_) => assert!(!lacks(Promise::SparedPairs)),
        AnyQueuePair::Errored(_) => assert!(lacks(Promise::SparedPairs)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reject_brings_its_data() {
    interlock::domain! { struct Client; }
    for len in [0, 1, 145] {
        let (mut listener, at) = listener();
        let server = thread::spawn(move || {
            let request = listener.next(PATIENCE).unwrap();
            request.reject(&RejectData::framed(&vec![7; len]).unwrap()).unwrap();
        });
        let mut side = Side::new(context().checked_domain().unwrap());
        let failed = cm::connect(at, side.take(), &ConnectData::none(), PATIENCE).unwrap_err();
        let Cause::Rejected { reason, data } = failed.into_cause() else { panic!("not rejected") };
        assert!(reason == RejectReason::CONSUMER || reason.0 < 0, "{reason}");
        assert_eq!(data.framed(), Some(&vec![7; len][..]));
        server.join().unwrap();
    }
}

#[test]
fn what_waits_may_be_dropped_at_any_step() {
    let (listener, at) = listener();
    let channel = Channel::open(&context()).unwrap();
    drop(Idle::new(&channel).unwrap());
    drop(Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap());
    let resolved = Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    let mut side = Side::new(context().checked_domain().unwrap());
    drop(resolved.connect(side.take(), &Parameters::default(), &ConnectData::none()).unwrap());
    drop(listener);
}

/// Whether the device is an iWARP device. Such a device moves the pairs by itself, and an accept connects both sides at
/// once.
fn is_iwarp() -> bool {
    context().is_iwarp()
}

fn side() -> Side<Checked> {
    Side::new(context().checked_domain().unwrap())
}

fn resolved(channel: &Channel, at: SocketAddr) -> Resolved {
    Idle::new(channel).unwrap().resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap()
}

/// A client that has sent its request.
fn connecting(side: &mut Side<Checked>, at: SocketAddr, data: &ConnectData) -> cm::Connecting<Checked> {
    let channel = Channel::open(&context()).unwrap();
    resolved(&channel, at).connect(side.take(), &Parameters::default(), data).unwrap()
}

fn accept(side: &mut Side<Checked>, request: Request) -> cm::Accepting<Checked> {
    request.accept(side.take(), &Parameters::default(), &cm::AcceptData::none()).unwrap()
}

/// One side of a connection.
struct End {
    side: Side<Checked>,
    connection: Connection<Checked>,
}

impl End {
    fn send(&mut self, to: &mut Self) {
        to.connection.pair.post_receive(to.side.domain.buffer(64).unwrap()).unwrap();
        self.connection.pair.post_send(message(&self.side.domain, b"hello")).unwrap();
        self.side.poller.wait(PATIENCE).unwrap().check().unwrap();
        assert_eq!(&to.side.received()[..], b"hello");
    }

    /// Reads memory of the peer. The error is the reason for which the library refused the request.
    fn read(&mut self, from: &Self) -> Result<Buffer<Checked>, RequestFlaw> {
        let region = from.side.domain.register::<RemoteRead, _>(vec![7_u8; 64]).unwrap();
        match self.connection.pair.post_read(self.side.domain.buffer(64).unwrap(), &region.remote()) {
            Ok(_) => Ok(self.side.poller.wait(PATIENCE).unwrap().check().unwrap().into_buffer().unwrap()),
            Err(PostError::Flawed { flaw, .. }) => Err(flaw),
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// A client and its server.
fn connected(listener: &mut Listener, at: SocketAddr, parameters: &Parameters) -> [End; 2] {
    reconnected(listener, at, parameters, [side(), side()])
}

fn reconnected(
    listener: &mut Listener,
    at: SocketAddr,
    parameters: &Parameters,
    [mut client, mut server]: [Side<Checked>; 2],
) -> [End; 2] {
    let connecting = connecting(&mut client, at, &ConnectData::none());
    let request = listener.next(PATIENCE).unwrap();
    let accepting = request.accept(server.take(), parameters, &cm::AcceptData::none()).unwrap();
    let of_client = connecting.wait(PATIENCE).unwrap();
    let of_server = accepting.wait(PATIENCE).unwrap();
    [End { side: client, connection: of_client }, End { side: server, connection: of_server }]
}

fn assert_refused(cause: &Cause) {
    let is_refusal =
        matches!(cause, Cause::Rejected { reason, .. } if *reason == RejectReason::CONSUMER || reason.0 < 0);
    assert!(is_refusal, "{cause:?}");
}

/// Checks that a client whose server has given it up is refused. On a real device the refusal can come late, so that
/// the client has already established the connection. Then it is the end of the connection.
fn is_given_up(asking: cm::Connecting<Checked>) {
    match asking.wait(PATIENCE) {
        // If the refusal comes while the client establishes the connection, the cause is `PeerGone`.
        Err(failed) if on_hardware() && matches!(failed.cause, Cause::PeerGone(_)) => {}
        Err(failed) => assert_refused(&failed.cause),
        Ok(mut late) => {
            let end = late.wait_end(PATIENCE).unwrap();
            let has_ended = matches!(end, Some(Cause::Disconnected | Cause::Rejected { .. }));
            assert!(on_hardware() && has_ended, "{end:?}");
        }
    }
}

/// CM007
#[test]
fn both_pairs_take_the_smaller_depths() {
    if lacks_need(Need::SmallerDepths) {
        return;
    }
    let (mut listener, at) = listener();
    let less = Parameters {
        responder_depth: ReadDepth::new(2).unwrap(),
        initiator_depth: ReadDepth::new(1).unwrap(),
        ..Parameters::default()
    };
    let [mut client, mut server] = connected(&mut listener, at, &less);
    let depths = |end: &End| {
        let attributes = end.connection.pair.query().unwrap();
        [attributes.responder_depth.value(), attributes.initiator_depth.value()]
    };
    assert_eq!((depths(&server), depths(&client)), ([2, 1], [1, 2]));
    client.send(&mut server);
    server.send(&mut client);
}

/// CM047. One side starts reads and the other serves them, in either direction.
#[test]
fn a_side_that_serves_no_reads_may_start_them() {
    let (mut listener, at) = listener();
    for [serves, starts] in [[16, 0], [0, 16]] {
        let [responder_depth, initiator_depth] = [serves, starts].map(|depth| ReadDepth::new(depth).unwrap());
        let parameters = Parameters { responder_depth, initiator_depth, ..Parameters::default() };
        let [mut client, mut server] = connected(&mut listener, at, &parameters);
        let (reader, owner) = if serves == 0 { (&mut server, &mut client) } else { (&mut client, &mut server) };
        assert_eq!(&reader.read(owner).unwrap()[..], [7; 64]);
        // A side cannot start reads if its peer serves none. Soft iWARP is an exception: there the server serves as
        // many reads as the client asks for.
        match owner.read(reader) {
            Ok(read) => assert!(serves == 0 && is_iwarp() && read[..] == [7; 64]),
            Err(flaw) => assert_eq!(flaw, RequestFlaw::NoReadDepth),
        }
    }
}

/// CM011
#[test]
fn private_data_fill_their_calls() {
    let (mut listener, at) = listener();
    let [mut client, mut server] = [side(), side()];
    let asking = connecting(&mut client, at, &ConnectData::raw(&[1; 56]).unwrap());
    let request = listener.next(PATIENCE).unwrap();
    assert_eq!(request.data().padded(), [1; 56]);
    let data = cm::AcceptData::raw(&[2; 196]).unwrap();
    let accepting = request.accept(server.take(), &Parameters::default(), &data).unwrap();
    let connection = asking.wait(PATIENCE).unwrap();
    assert_eq!(connection.data.padded(), [2; 196]);
    accepting.wait(PATIENCE).unwrap();
}

/// CM014
#[test]
fn an_address_that_nobody_has_is_given_up_and_the_identifier_goes_on() {
    let (_listener, at) = listener();
    let IpAddr::V4(ip) = at.ip() else { panic!("not an address of IPv4") };
    let [a, b, c, _] = ip.octets();
    let nobody = SocketAddr::from(([a, b, c, 77], at.port()));
    let start = Instant::now();
    let channel = Channel::open(&context()).unwrap();
    let failed = Idle::new(&channel).unwrap().resolve(nobody, SHORT).unwrap().wait(PATIENCE).unwrap_err();
    let Cause::Address(error) = failed.cause else { panic!("{failed:?}") };
    assert_eq!(error.errno(), libc::ETIMEDOUT);
    assert!(start.elapsed() >= SHORT);
    let again = failed.value.expect("the identifier");
    again.resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
}

/// CM015
#[test]
fn an_address_without_a_route_is_refused_at_once() {
    let channel = Channel::open(&context()).unwrap();
    for nowhere in ["224.0.0.1:7471", "255.255.255.255:7471"] {
        let failed = Idle::new(&channel).unwrap().resolve(nowhere.parse().unwrap(), PATIENCE).unwrap_err();
        assert!(matches!(&failed.cause, Cause::Call(error) if error.errno() == libc::ENETUNREACH), "{failed:?}");
        drop(failed.value);
    }
}

/// CM016, as far as it applies to iWARP: the stream is connected, but the peer sends nothing on it. The device waits
/// ten seconds for an answer; neither this side nor another connection of the process waits that long.
#[test]
fn a_stream_without_an_answer_costs_no_more_than_the_timeout() {
    if !is_iwarp() || !on_hardware() {
        writeln!(std::io::stdout(), "not applicable: needs an iWARP device with TCP").expect("standard output");
        return;
    }
    let silent = TcpListener::bind((address(&context()), 0)).unwrap();
    let at = silent.local_addr().unwrap();
    assert!((0..3).any(|_| nothing_waits_for_a_stream_to(at)), "something waited, three times");
}

/// Connects to a peer that sends nothing. Returns `false` if this attempt proves nothing: it took too long.
fn nothing_waits_for_a_stream_to(silent: SocketAddr) -> bool {
    let mut client = side();
    let start = Instant::now();
    // This is usually long enough for TCP to connect on a busy machine.
    let timeout = Duration::from_secs(2);
    let failed = cm::connect(silent, client.take(), &ConnectData::none(), timeout).unwrap_err();
    if matches!(failed.cause, Cause::Unreachable { .. }) {
        // This thread stood still until the device gave up.
        return false;
    }
    assert!(matches!(failed.cause, Cause::TimedOut(_)), "{failed:?}");
    if matches!(failed.value, AnyQueuePair::Init(_) | AnyQueuePair::Vacant) {
        return false;
    }
    assert!(matches!(failed.value, AnyQueuePair::Errored(_)), "{failed:?}");
    let (mut listener, at) = listener();
    let [mut one, mut other] = connected(&mut listener, at, &Parameters::default());
    one.send(&mut other);
    drop((one, other, listener));
    if start.elapsed() >= Duration::from_secs(9) {
        return false;
    }
    // The device waits ten seconds for an answer, and keeps the pair during this time. The drop waits until the device
    // releases the pair.
    drop(failed);
    assert!(start.elapsed() > Duration::from_secs(9), "document the wait of a pair's end no more");
    true
}

/// CM018
#[test]
fn a_client_that_ends_before_the_accept_is_gone() {
    let (mut listener, at) = listener();
    // On a real device, it takes some time until this side learns that the client has ended. On iWARP, this side learns
    // it only after the client's pair is destroyed, which takes 10 s. `drop` does not always wait for that: sometimes
    // another thread destroys the pair.
    let mut pause = if is_iwarp() { Duration::from_secs(12) } else { SHORT };
    let failed = loop {
        let [mut client, mut server] = [side(), side()];
        let asking = connecting(&mut client, at, &ConnectData::none());
        let request = listener.next(PATIENCE).unwrap();
        drop(asking);
        thread::sleep(pause);
        match request.accept(server.take(), &Parameters::default(), &cm::AcceptData::none()) {
            Err(failed) => break failed,
            Ok(late) => drop(late),
        }
        pause *= 2;
        assert!(on_hardware() && pause < PATIENCE, "this side does not learn it");
    };
    let Cause::PeerGone(error) = &failed.cause else { panic!("{failed:?}") };
    // On iWARP the request came over a TCP stream that the client has closed, so the error can also be `ECONNRESET`.
    let expected: &[i32] = if is_iwarp() { &[libc::EINVAL, libc::ECONNRESET] } else { &[libc::EINVAL] };
    assert!(expected.contains(&error.errno()), "{failed:?}");
}

/// CM019
#[test]
fn a_client_that_ends_before_its_request_leaves_no_trace() {
    let (mut listener, at) = listener();
    let channel = Channel::open(&context()).unwrap();
    drop(resolved(&channel, at));
    assert!(matches!(listener.next(SHORT), Err(cm::CmError::TimedOut(_))));
}

/// CM020
#[test]
fn a_request_that_is_dropped_is_rejected() {
    let (mut listener, at) = listener();
    let mut client = side();
    let asking = connecting(&mut client, at, &ConnectData::none());
    drop(listener.next(PATIENCE).unwrap());
    let failed = asking.wait(PATIENCE).unwrap_err();
    assert_refused(&failed.cause);
    // An iWARP device moves the pair to Error by itself.
    let state = match &failed.value {
        AnyQueuePair::Init(pair) if !is_iwarp() => pair.query_state(),
        AnyQueuePair::Errored(pair) if is_iwarp() => pair.query_state(),
        other => panic!("{other:?}"),
    };
    let expected = if is_iwarp() { reported(DeviceState::Error) } else { DeviceState::Init };
    assert_eq!(state.unwrap(), expected);
}

/// What a query of a pair in that state reports. Soft iWARP of Linux 6.1 reports zeros.
fn reported(state: DeviceState) -> DeviceState {
    if is_iwarp() && on_hardware() && !is_linux_6_12() { DeviceState::Reset } else { state }
}

/// CM021
#[test]
fn a_server_that_ends_after_its_accept_rejects() {
    if lacks_need(Need::ThreeSteps) {
        return;
    }
    let (mut listener, at) = listener();
    let [mut client, mut server] = [side(), side()];
    let asking = connecting(&mut client, at, &ConnectData::none());
    drop(accept(&mut server, listener.next(PATIENCE).unwrap()));
    thread::sleep(SHORT);
    is_given_up(asking);
}

/// CM022, CM025
#[test]
fn the_end_of_a_peer_flushes_the_receives() {
    let (mut listener, at) = listener();
    let [mut client, server] = connected(&mut listener, at, &Parameters::default());
    client.connection.pair.post_receive(client.side.domain.buffer(64).unwrap()).unwrap();
    assert!(client.connection.poll_end().unwrap().is_none());
    drop(server);
    for _ in 0..2 {
        let end = client.connection.wait_end(PATIENCE).unwrap();
        assert!(matches!(end, Some(Cause::Disconnected)), "{end:?}");
    }
    let failure = client.side.poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert!(failure.into_buffer().is_some());
}

/// The link tells of the end first, and moves no pair. The connection moves the pair when it is asked.
#[test]
fn an_end_that_the_link_has_told_flushes_the_receives_too() {
    let (mut listener, at) = listener();
    let [mut client, server] = connected(&mut listener, at, &Parameters::default());
    client.connection.pair.post_receive(client.side.domain.buffer(64).unwrap()).unwrap();
    drop(server);
    let end = client.connection.link.wait_end(PATIENCE).unwrap();
    assert!(matches!(end, Some(Cause::Disconnected)), "{end:?}");
    assert!(client.connection.poll_end().unwrap().is_some());
    let failure = client.side.poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert!(failure.into_buffer().is_some());
}

/// CM023, CM024
#[test]
fn both_sides_disconnect_and_their_numbers_rest() {
    let (mut listener, at) = listener();
    let [client, mut server] = connected(&mut listener, at, &Parameters::default());
    let mut first = client.connection.disconnect().unwrap();
    assert_eq!(first.pair.query_state().unwrap(), DeviceState::Error);
    let end = server.connection.wait_end(PATIENCE).unwrap();
    assert!(matches!(end, Some(Cause::Disconnected)), "{end:?}");
    assert_eq!(first.wait_for_number(SHORT).unwrap(), is_iwarp(), "the peer has not disconnected");
    let mut second = server.connection.disconnect().unwrap();
    assert!(second.wait_for_number(PATIENCE).unwrap() && first.wait_for_number(PATIENCE).unwrap());
}

#[test]
fn two_that_disconnect_at_once_free_their_numbers() {
    let (mut listener, at) = listener();
    let ends = connected(&mut listener, at, &Parameters::default());
    let threads = ends.map(|end| {
        thread::spawn(move || {
            let mut ended = end.connection.disconnect().unwrap();
            assert!(ended.wait_for_number(PATIENCE).unwrap());
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

/// CM026
#[test]
fn an_identifier_ends_at_once_although_its_events_were_taken() {
    let (mut listener, at) = listener();
    let channel = Channel::open(&context()).unwrap();
    let resolving = Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap();
    assert!(channel.readiness().unwrap().wait(PATIENCE).unwrap());
    drop(resolving.poll().unwrap());
    let mut client = side();
    let asking = connecting(&mut client, at, &ConnectData::none());
    let request = listener.next(PATIENCE).unwrap();
    drop(listener);
    drop(request);
    assert_refused(&asking.wait(PATIENCE).unwrap_err().cause);
}

/// CM027
#[test]
fn a_listener_that_is_dropped_rejects_what_nobody_took() {
    let channel = Channel::open(&context()).unwrap();
    let bound = Idle::new(&channel).unwrap().bind(SocketAddr::new(address(&context()), 0)).unwrap();
    let at = bound.local_address().unwrap();
    let listener = bound.listen(0).unwrap();
    let mut sides = [side(), side()];
    let readiness = channel.readiness().unwrap();
    let asking = sides.each_mut().map(|side| connecting(side, at, &ConnectData::none()));
    assert!(readiness.wait(PATIENCE).unwrap());
    thread::sleep(SHORT);
    drop(listener);
    let mut unanswered = 0;
    for asking in asking {
        match asking.wait(PATIENCE).unwrap_err().cause {
            // On a real device, one request can come after the listener was dropped or, on iWARP, during the drop.
            Cause::Rejected { reason: RejectReason::NO_SUCH_SERVICE, .. } | Cause::PeerGone(_) if on_hardware() => {
                unanswered += 1;
            }
            // On iWARP, the kernel had perhaps read the request from the stream, but not told this program of it. The
            // drop of the listener then ends the stream without an answer.
            Cause::Unreachable { .. } if on_hardware() && is_iwarp() => unanswered += 1,
            cause => assert_refused(&cause),
        }
    }
    assert!(unanswered < 2, "one request came before the drop");
}

/// CM028
#[test]
fn a_connection_outlives_its_listener() {
    let (mut listener, at) = listener();
    let [mut client, mut server] = connected(&mut listener, at, &Parameters::default());
    drop(listener);
    client.send(&mut server);
    server.send(&mut client);
}

/// CM029
#[test]
fn identifiers_keep_their_channel() {
    let (_listener, at) = listener();
    let channel = Channel::open(&context()).unwrap();
    let idle = Idle::new(&channel).unwrap();
    drop(channel);
    idle.resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
}

/// CM030, CM031
#[test]
fn each_identifier_of_a_channel_gets_its_events() {
    let (_listener, at) = listener();
    let channel = Channel::open(&context()).unwrap();
    let readiness = channel.readiness().unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap()).collect();
    while !waiting.is_empty() {
        readiness.wait(PATIENCE).unwrap();
        let polled: Vec<_> = waiting.drain(..).map(|resolving| resolving.poll().unwrap()).collect();
        waiting.extend(polled.into_iter().filter_map(|progress| match progress {
            Progress::Pending(resolving) => Some(resolving),
            Progress::Done(_) => None,
        }));
    }
}

/// CM034
#[test]
fn a_client_that_never_establishes_is_given_up() {
    if lacks_need(Need::ThreeSteps) {
        return;
    }
    let (mut listener, at) = listener();
    let [mut client, mut server] = [side(), side()];
    let asking = connecting(&mut client, at, &ConnectData::none());
    let request = listener.next(PATIENCE).unwrap();
    let mut pair = server.take();
    pair.post_receive(server.domain.buffer(64).unwrap()).unwrap();
    let accepting = request.accept(pair, &Parameters::default(), &cm::AcceptData::none()).unwrap();
    let failed = accepting.wait(SHORT).unwrap_err();
    assert!(matches!(failed.cause, Cause::TimedOut(_)), "{failed:?}");
    let AnyQueuePair::Errored(_pair) = failed.value else { panic!("not in Error") };
    server.poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert!(matches!(server.poller.wait(Duration::ZERO), Err(WaitError::TimedOut(_))));
    // The server gave up before the client established the connection.
    is_given_up(asking);
}

/// CM036
#[test]
fn a_port_has_one_listener() {
    let (_listener, at) = listener();
    let channel = Channel::open(&context()).unwrap();
    let failed = Idle::new(&channel).unwrap().bind(at).unwrap_err();
    assert!(matches!(&failed.cause, Cause::Call(error) if error.errno() == libc::EADDRINUSE), "{failed:?}");
    let everywhere = Idle::new(&channel).unwrap().bind(SocketAddr::from(([0; 4], at.port()))).unwrap_err();
    assert!(matches!(&everywhere.cause, Cause::Call(error) if error.errno() == libc::EADDRNOTAVAIL), "{everywhere:?}");
    let reusing = |at| {
        let mut idle = Idle::new(&channel).unwrap();
        idle.set_reuse_address(true).unwrap();
        idle.bind(at).unwrap()
    };
    let one = reusing(SocketAddr::new(at.ip(), 0));
    let two = reusing(one.local_address().unwrap());
    let mut left = Vec::new();
    for bound in [one, two] {
        let failed = bound.listen(0).unwrap_err();
        assert!(matches!(&failed.cause, Cause::Call(error) if error.errno() == libc::EADDRINUSE), "{failed:?}");
        left.push(failed.value);
    }
    left.truncate(1);
    left.pop().unwrap().listen(0).unwrap();
}

/// CM037
#[test]
fn an_address_of_nobody_here_cannot_be_bound() {
    let channel = Channel::open(&context()).unwrap();
    let failed = Idle::new(&channel).unwrap().bind("192.0.2.1:0".parse().unwrap()).unwrap_err();
    assert!(matches!(&failed.cause, Cause::Call(error) if error.errno() == libc::EADDRNOTAVAIL), "{failed:?}");
}

/// CM044
#[test]
fn the_same_pairs_connect_again() {
    if lacks_need(Need::Reset) {
        return;
    }
    let (mut listener, at) = listener();
    let parameters = Parameters::default();
    let mut ends = connected(&mut listener, at, &parameters);
    let numbers = |ends: &[End; 2]| ends.each_ref().map(|end| end.connection.pair.number());
    let before = numbers(&ends);
    let [client, mut server] = ends;
    let again = |End { mut side, connection }: End| {
        let mut ended = connection.disconnect().unwrap();
        ended.pair.drain(&mut side.poller, PATIENCE, drop).unwrap();
        move || {
            assert!(ended.wait_for_number(PATIENCE).unwrap());
            let port = side.domain.context().active_port().unwrap();
            side.pair = Some(ended.pair.into_reset().unwrap().into_init(&port).unwrap());
            side
        }
    };
    let client = again(client);
    server.connection.wait_end(PATIENCE).unwrap();
    let server = again(server);
    ends = reconnected(&mut listener, at, &parameters, [client(), server()]);
    assert_eq!(numbers(&ends), before);
    let [mut client, mut server] = ends;
    client.send(&mut server);
}

/// CM018 to CM022, CM025, CM040: clients and servers end at each step, many times. After that, the listener still
/// serves a client.
#[test]
fn a_hundred_that_end_at_any_step_leave_the_listener_well() {
    let (mut listener, at) = listener();
    // If a client is dropped while it connects, Linux soft iWARP needs ten seconds to end its pair.
    let rounds = if is_iwarp() && on_hardware() { 10 } else { 100 };
    for round in 0..rounds {
        let channel = Channel::open(&context()).unwrap();
        let [mut client, mut server] = [side(), side()];
        let resolving = Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap();
        if round % 5 == 0 {
            drop(resolving);
            continue;
        }
        let resolved = resolving.wait(PATIENCE).unwrap();
        let asking = resolved.connect(client.take(), &Parameters::default(), &ConnectData::none()).unwrap();
        let request = listener.next(PATIENCE).unwrap();
        match round % 5 {
            1 => drop((asking, request)),
            2 => {
                drop(request);
                assert_refused(&asking.wait(PATIENCE).unwrap_err().cause);
            }
            3 => drop((accept(&mut server, request), asking)),
            _ => {
                let accepting = accept(&mut server, request);
                let of_client = asking.wait(PATIENCE).unwrap();
                let of_server = accepting.wait(PATIENCE).unwrap();
                let mut other = if round % 2 == 0 {
                    drop(of_client);
                    of_server
                } else {
                    drop(of_server);
                    of_client
                };
                assert!(matches!(other.wait_end(PATIENCE).unwrap(), Some(Cause::Disconnected)));
            }
        }
    }
    let [mut client, mut server] = connected(&mut listener, at, &Parameters::default());
    client.send(&mut server);
    assert!(listener.poll().unwrap().is_none());
}

/// An attack: the program forgets the link, so rdma_cm never learns that the connection has ended. Then the program
/// drops the pair with a receive in flight.
#[test]
fn memory_in_flight_comes_back_although_the_link_is_forgotten() {
    let (mut listener, at) = listener();
    let [End { mut side, connection }, _peer] = connected(&mut listener, at, &Parameters::default());
    let Connection { mut pair, data: _, link } = connection;
    let receive = pair.post_receive(side.domain.buffer(64).unwrap()).unwrap();
    std::mem::forget(link);
    drop(pair);
    let completion = side.poller.wait(PATIENCE).unwrap();
    assert_eq!(completion.id(), receive);
    assert!(completion.check().unwrap_err().into_buffer().is_some());
}
