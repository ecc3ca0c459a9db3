//! Tests the example `rpc_service`: its modules against peers that break the protocol, crash, are late or shut down,
//! and the whole program on the device under test.

#[path = "../examples/rpc_service/frame.rs"]
mod frame;
#[path = "../examples/rpc_service/place.rs"]
#[allow(dead_code, reason = "the program uses the rest")]
mod place;
#[path = "../examples/rpc_service/rpc.rs"]
#[allow(dead_code, reason = "the program uses the rest")]
mod rpc;
#[path = "../examples/rpc_service/service.rs"]
mod service;
#[path = "../examples/rpc_service/wire.rs"]
mod wire;

use frame::{FRAME_BYTES, Frame, Kind, MOST_BODY, Violation};
use interlock::aio::{self, Connection, End, SharedPoller};
use interlock::{Brand, Buffer, Endpoint, Inline, ProtectionDomain, RemoteRegion, RemoteWrite, WorkRequest};
use place::{Listener, Place};
use rpc::{CREDITS, CallError, Client, LIMITS, SILENCE, Server, ServerReport};
use service::Service;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use support::program::{Ended, Program, example, free_port};
use support::{Need, PATIENCE, Random, address, context, lacks_need, on_hardware};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};
use wire::Broken;

/// The most clients of a server here.
const CLIENTS: u32 = 8;
const SHORT: Duration = Duration::from_millis(50);
/// Usually long enough for a request to arrive.
const GIVE_UP: Duration = Duration::from_millis(500);

/// A server, and what its clients need. Its service has a gate: calls that begin with `hold` wait while it is closed.
struct World<B: Brand> {
    domain: ProtectionDomain<B>,
    place: Arc<Place<B>>,
    service: Arc<Service>,
    server: Server,
    at: SocketAddr,
}

impl<B: Brand + 'static> World<B> {
    async fn new(domain: ProtectionDomain<B>, by_records: bool) -> Self {
        let place = Place::new(domain.clone(), CLIENTS, LIMITS, by_records).unwrap();
        let listener = listen(&place, &domain, 0).await;
        let (at, service) = (listener.address().unwrap(), Service::new());
        let server = Server::start(&place, listener, service.handler());
        Self { domain, place, service, server, at }
    }

    fn client(&self) -> Client {
        Client::start(&self.place, self.at)
    }

    /// A connection to the server. The test writes its messages by hand, so they may break the protocol.
    async fn rogue(&self) -> Connection<B> {
        self.place.connect(self.at).await.unwrap()
    }

    /// A message of any bytes.
    fn raw(&self, bytes: &[u8]) -> Buffer<B> {
        let mut buffer = self.domain.buffer(bytes.len().max(1)).unwrap();
        buffer.write(bytes).unwrap();
        buffer
    }

    fn frame(&self, kind: Kind, id: u64, body: &[u8]) -> Buffer<B> {
        let mut buffer = self.domain.buffer(FRAME_BYTES).unwrap();
        assert!(Frame::write(&mut buffer, kind, id, body));
        buffer
    }

    /// Shuts the server down, and checks that no buffer is missing.
    async fn end(self) -> ServerReport {
        let report = self.server.shut_down(PATIENCE).await;
        self.place.is_empty(PATIENCE).await.unwrap();
        // A device that does not flush late posts may keep the server's last message if the client has just ended the
        // connection.
        let must_drain = self.domain.context().promises().late_posts_are_flushed();
        assert!(!must_drain || report.clients.iter().all(|client| client.has_drained), "{report:?}");
        report
    }
}

/// A listener at the address of this side. Tries again, since the port of an earlier listener may stay taken for a
/// moment.
async fn listen<B: Brand + 'static>(place: &Place<B>, domain: &ProtectionDomain<B>, port: u16) -> Listener {
    let deadline = Instant::now() + PATIENCE;
    let own = if place.is_by_records() { [127, 0, 0, 1].into() } else { address(&domain.context()) };
    loop {
        match place.listen((own, port).into()).await {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "{error:#}"),
        }
        sleep(SHORT).await;
    }
}

/// The ways to connect that the device supports: true stands for records, false for addresses.
fn ways() -> &'static [bool] {
    if context().is_iwarp() { &[false] } else { &[false, true] }
}

/// A checked domain.
macro_rules! domain {
    () => {
        context().checked_domain().unwrap()
    };
}

/// Runs a test to its end, with a time limit: if one task panics, others may wait for ever.
fn finish<F: Future>(test: F) -> F::Output {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { timeout(2 * PATIENCE, test).await.expect("a part of the test waits for ever") })
}

/// Waits until `is_so` returns true.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

// Tests of frames.

#[test]
fn a_frame_says_what_was_put_into_it() {
    let domain = domain!();
    for kind in [Kind::Hello, Kind::Request, Kind::Answer, Kind::Bye] {
        for len in [0, 1, 255, 256, MOST_BODY] {
            let mut buffer = domain.buffer(FRAME_BYTES).unwrap();
            let frame = Frame { kind, id: u64::MAX - len as u64, body: vec![7; len] };
            assert!(Frame::write(&mut buffer, kind, frame.id, &frame.body));
            assert_eq!(Frame::parse(&buffer), Ok(frame));
        }
    }
    let mut buffer = domain.buffer(FRAME_BYTES).unwrap();
    assert!(!Frame::write(&mut buffer, Kind::Request, 1, &[0; MOST_BODY + 1]));
    let mut short = domain.buffer(14).unwrap();
    assert!(!Frame::write(&mut short, Kind::Request, 1, b"abc") && Frame::write(&mut short, Kind::Request, 1, b"ab"));
}

/// Valid frames that are cut off at random and have up to two bytes changed. An accepted frame has the length that it
/// names.
#[test]
fn bytes_of_any_form_are_a_frame_or_a_violation() {
    let domain = domain!();
    let (mut random, mut taken, mut refused) = (Random::new(7), 0, 0);
    // On a real device the kernel registers each buffer. That is slow, and this test is not about it.
    for _ in 0..if on_hardware() { 10_000 } else { 100_000 } {
        let mut buffer = domain.buffer(64).unwrap();
        assert!(Frame::write(&mut buffer, Kind::Request, 5, &[1; 20]));
        let mut bytes = buffer[..random.below(buffer.len() + 1)].to_vec();
        for _ in 0..random.below(3) {
            if let Some(at) = (!bytes.is_empty()).then(|| random.below(bytes.len())) {
                bytes[at] = random.below(256) as u8;
            }
        }
        match Frame::parse(&bytes) {
            Ok(frame) => {
                assert_eq!(frame.body.len() + 12, bytes.len());
                taken += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
}

// Tests of calls.

#[test]
fn calls_of_many_tasks_have_their_answers() {
    let domain = domain!();
    finish(async {
        for &by_records in ways() {
            let world = World::new(domain.clone(), by_records).await;
            let client = Arc::new(world.client());
            let tasks: Vec<_> = (0..3 * CREDITS)
                .map(|task| {
                    let client = Arc::clone(&client);
                    tokio::spawn(async move {
                        for call in 0..20 {
                            let answer = client.call(format!("call {task}/{call}").as_bytes(), PATIENCE).await;
                            assert_eq!(answer, Ok(format!("CALL {task}/{call}").into_bytes()));
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(client.call(&[b'x'; MOST_BODY], PATIENCE).await, Ok(vec![b'X'; MOST_BODY]));
            assert_eq!(client.call(&[0; MOST_BODY + 1], PATIENCE).await, Err(CallError::TooLong(MOST_BODY + 1)));
            let report = Arc::into_inner(client).unwrap().close(PATIENCE).await;
            assert_eq!((report.connects, report.late, report.undrained, report.broken), (1, 0, 0, vec![]));
            let report = world.end().await;
            assert_eq!((report.clients.len(), report.clients[0].answered), (1, 60 * CREDITS as u64 + 1));
            assert_eq!(report.clients[0].broken, None);
        }
    });
}

/// Calls that gave up still hold their credits, which come back with the late answers.
#[test]
fn calls_that_give_up_lose_nothing() {
    let domain = domain!();
    finish(async {
        let world = World::new(domain.clone(), false).await;
        let client = world.client();
        world.service.close_gate();
        // The hello holds a credit until the server has answered it. Once this call has its answer, the hello has been
        // answered too.
        assert_eq!(client.call(b"first", PATIENCE).await.as_deref(), Ok(&b"FIRST"[..]));
        for number in 0..CREDITS {
            let call = format!("hold {number}").into_bytes();
            match number % 2 {
                0 => {
                    let mut wait = GIVE_UP;
                    loop {
                        assert_eq!(client.call(&call, wait).await, Err(CallError::TimedOut(wait)));
                        if world.service.holds(number + 1, PATIENCE / 4).await {
                            break;
                        }
                        // Perhaps the client was slow, and gave up before it had sent the call.
                        wait *= 2;
                        assert!(wait < PATIENCE, "no request arrives");
                    }
                }
                _ => tokio::select! {
                    answer = client.call(&call, PATIENCE) => panic!("{answer:?}"),
                    came = world.service.holds(number + 1, PATIENCE) => assert!(came),
                },
            }
        }
        assert!(world.service.holds(CREDITS, PATIENCE).await);
        // There is no credit left, so this call is not even sent.
        assert_eq!(client.call(b"hold on", SHORT).await, Err(CallError::TimedOut(SHORT)));
        assert!(!world.service.holds(CREDITS + 1, SHORT).await);
        assert_eq!(client.report().late, 0);
        world.service.open_gate();
        until("all late answers", || client.report().late == CREDITS as u64).await;
        assert_eq!(client.call(b"after", PATIENCE).await.as_deref(), Ok(&b"AFTER"[..]));
        let report = client.close(PATIENCE).await;
        assert_eq!((report.connects, report.late, report.broken), (1, CREDITS as u64, vec![]));
        let report = world.end().await;
        // The server answered exactly the calls that were sent. The call without a credit is not among them.
        assert_eq!((report.clients[0].answered, report.clients[0].unanswered), (CREDITS as u64 + 2, 0));
    });
}

#[test]
fn a_client_that_closes_waits_no_longer_than_it_says() {
    let domain = domain!();
    finish(async {
        let mut world = World::new(domain.clone(), false).await;
        let client = world.client();
        world.service.close_gate();
        tokio::select! {
            answer = client.call(b"hold", PATIENCE) => panic!("{answer:?}"),
            came = world.service.holds(1, PATIENCE) => assert!(came),
        }
        timeout(PATIENCE, client.close(SHORT)).await.expect("it is closed without the answer");
        timeout(PATIENCE, world.server.has_served(1)).await.expect("the server notices");
        let served = world.end().await.clients.remove(0);
        assert!(matches!(served.broken, Some(Broken::Ended(_))) && served.unanswered == 1, "{served:?}");
    });
}

#[test]
fn one_client_too_many_waits_for_its_turn() {
    let domain = domain!();
    finish(async {
        for &by_records in ways() {
            let world = World::new(domain.clone(), by_records).await;
            // The clients have a `Place` of their own, so their pairs do not use up the server's room.
            let elsewhere = Place::new(domain.clone(), CLIENTS, LIMITS, by_records).unwrap();
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::start(&elsewhere, world.at)).collect();
            for client in &clients {
                assert_eq!(client.call(b"one", PATIENCE).await.as_deref(), Ok(&b"ONE"[..]));
            }
            let patient = Client::start(&elsewhere, world.at);
            assert_eq!(patient.call(b"too many", GIVE_UP).await, Err(CallError::TimedOut(GIVE_UP)));
            clients.pop().unwrap().close(PATIENCE).await;
            assert_eq!(patient.call(b"my turn", PATIENCE).await.as_deref(), Ok(&b"MY TURN"[..]));
            assert_eq!(patient.close(PATIENCE).await.connects, 1);
            for client in clients {
                client.close(PATIENCE).await;
            }
            assert_eq!(world.end().await.served, CLIENTS as usize + 1);
            elsewhere.is_empty(PATIENCE).await.unwrap();
        }
    });
}

// Tests with peers that break the protocol.

/// What a rogue client sends, and how the server names it.
fn rogues() -> Vec<(Vec<u8>, Violation)> {
    let frame = |version: u8, kind: u8, len: u16, rest: &[u8]| {
        [&[version, kind][..], &len.to_be_bytes(), &9_u64.to_be_bytes(), rest].concat()
    };
    let mut all = vec![
        (vec![], Violation::TooShort(0)),
        (vec![1; 11], Violation::TooShort(11)),
        (frame(2, 2, 0, b""), Violation::Version(2)),
        (frame(1, 0, 0, b""), Violation::Kind(0)),
        (frame(1, 5, 0, b""), Violation::Kind(5)),
        (frame(1, Kind::Answer as u8, 0, b""), Violation::Kind(3)),
        (frame(1, Kind::Bye as u8, 0, b""), Violation::Kind(4)),
        (frame(1, 2, 3, b"four"), Violation::Length { claimed: 3, actual: 4 }),
        (frame(1, 2, u16::MAX, b"four"), Violation::Length { claimed: 65535, actual: 4 }),
    ];
    if !context().is_iwarp() {
        // On iWARP, the server's device ends the connection when a message is too long, and does not always report why.
        all.push((vec![1; FRAME_BYTES + 1], Violation::TooLong));
    }
    all
}

#[test]
fn a_client_that_sends_rubbish_is_named_and_harms_nobody() {
    let domain = domain!();
    finish(async {
        let mut world = World::new(domain.clone(), false).await;
        let honest = world.client();
        let rogues = rogues();
        for (count, (bytes, _)) in rogues.iter().enumerate() {
            let mut rogue = world.rogue().await;
            // Whether the send succeeds depends on the device.
            _ = rogue.send(world.raw(bytes)).unwrap().await;
            timeout(PATIENCE, world.server.has_served(count + 1)).await.expect("the server ends the connection");
            timeout(PATIENCE, rogue.closed()).await.expect("the rogue learns of the end");
            assert_eq!(honest.call(b"still there?", PATIENCE).await.as_deref(), Ok(&b"STILL THERE?"[..]));
        }
        assert_eq!(honest.close(PATIENCE).await.connects, 1);
        let report = world.end().await;
        let named: Vec<_> = report.clients.iter().filter_map(|client| client.broken.clone()).collect();
        assert_eq!(named, rogues.into_iter().map(|(_, violation)| violation.into()).collect::<Vec<Broken>>());
    });
}

/// A write with an immediate would take a receive and bring no message. The server's device refuses the write, since
/// the pair gives its peer no rights. If the device lets it pass, the server refuses it.
#[test]
fn a_client_that_writes_is_refused() {
    if lacks_need(Need::Immediates) {
        return;
    }
    let domain = domain!();
    finish(async {
        let mut world = World::new(domain.clone(), false).await;
        let mut rogue = world.rogue().await;
        let nowhere = RemoteRegion::<RemoteWrite>::of_peer(0, 1, 0).unwrap();
        let write = WorkRequest::write(Inline(b""), &nowhere).with_immediate(7);
        let is_refused = rogue.sender.post(write).unwrap().await.is_err();
        timeout(PATIENCE, world.server.has_served(1)).await.expect("the server ends the connection");
        drop(rogue);
        let served = world.end().await.clients.remove(0);
        assert!(is_refused || served.broken == Some(Violation::NoMessage.into()), "{served:?}");
        assert_eq!((served.answered, served.unanswered), (0, 0));
    });
}

#[test]
fn a_client_without_credit_is_named() {
    let domain = domain!();
    finish(async {
        for &by_records in ways() {
            let mut world = World::new(domain.clone(), by_records).await;
            let honest = world.client();
            world.service.close_gate();
            let mut rogue = world.rogue().await;
            // The last of these requests is one more than the client has credits for.
            let sends: Vec<_> = (1..=CREDITS as u64 + 1)
                .map(|id| rogue.send(world.frame(Kind::Request, id, b"hold")).unwrap())
                .collect();
            timeout(PATIENCE, world.server.has_served(1)).await.expect("the server ends the connection");
            drop(sends);
            assert_eq!(honest.call(b"and me?", PATIENCE).await.as_deref(), Ok(&b"AND ME?"[..]));
            timeout(PATIENCE, rogue.closed()).await.expect("the rogue learns of the end");
            drop(rogue);
            honest.close(PATIENCE).await;
            let report = world.end().await;
            assert_eq!(report.clients[0].broken, Some(Violation::Credits(CREDITS).into()));
            assert_eq!((report.clients[0].unanswered, report.clients[0].answered), (CREDITS, 0));
        }
    });
}

#[test]
fn a_client_that_repeats_an_id_is_named() {
    let domain = domain!();
    finish(async {
        let mut world = World::new(domain.clone(), false).await;
        world.service.close_gate();
        let mut rogue = world.rogue().await;
        let sends = [(); 2].map(|()| rogue.send(world.frame(Kind::Request, 5, b"hold")).unwrap());
        timeout(PATIENCE, world.server.has_served(1)).await.expect("the server ends the connection");
        drop((sends, rogue));
        let report = world.end().await;
        assert_eq!(report.clients[0].broken, Some(Violation::RepeatedId(5).into()));
    });
}

/// One client sends nothing after it has connected. Another destroys its pair and keeps its link, as if its host had
/// failed. The server ends both connections. An honest client that has said hello may be as quiet, and stays.
#[test]
fn clients_that_are_silent_or_dead_are_sent_away() {
    let domain = domain!();
    finish(async {
        let mut world = World::new(domain.clone(), false).await;
        let honest = world.client();
        assert_eq!(honest.call(b"before", PATIENCE).await.as_deref(), Ok(&b"BEFORE"[..]));
        world.service.close_gate();
        let silent = world.rogue().await;
        let mut dead = world.rogue().await;
        dead.send(world.frame(Kind::Request, 1, b"hold")).unwrap().await.unwrap();
        assert!(world.service.holds(1, PATIENCE).await);
        let Connection { sender, receiver, link } = dead;
        drop((sender, receiver));
        timeout(PATIENCE, world.server.has_served(2)).await.expect("the server notices both");
        sleep(SILENCE).await;
        assert_eq!(honest.call(b"after", PATIENCE).await.as_deref(), Ok(&b"AFTER"[..]));
        assert_eq!(honest.close(PATIENCE).await.connects, 1);
        drop((silent, link));
        let report = world.end().await;
        let broken: Vec<_> = report.clients.iter().filter_map(|client| client.broken.as_ref()).collect();
        assert!(broken.contains(&&Broken::Deadline), "{report:?}");
        assert!(broken.iter().any(|broken| matches!(broken, Broken::Ended(_))), "{report:?}");
    });
}

/// The poller keeps messages that arrive before the server has accepted their client. These clients are never accepted,
/// and together send more messages than the poller keeps.
#[test]
fn clients_that_vanish_before_they_are_connected_leave_room_for_others() {
    let domain = domain!();
    if lacks_need(Need::Records) {
        return;
    }
    finish(async {
        let world = World::new(domain.clone(), true).await;
        let (queue, poller) = domain.completion_queue(2 * LIMITS.completions()).unwrap();
        let poller = SharedPoller::new(poller);
        drop(aio::spawn(poller.driver().unwrap()).unwrap());
        let port = domain.context().active_port().unwrap();
        let vanish = async || {
            let pair = domain.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
            let mut stream = TcpStream::connect(world.at).await.unwrap();
            // This is a greeting as in `interlock::aio::tcp`, without data. The server answers with a greeting that has
            // one byte of data, and with the byte `!`.
            let greeting = [b"IT\x01\x01\0\0\0\0", &pair.endpoint().to_bytes()[..]].concat();
            stream.write_all(&greeting).await.unwrap();
            let mut answer = [0; 8 + Endpoint::RECORD_BYTES + 1 + 1];
            stream.read_exact(&mut answer).await.unwrap();
            let record = answer[8..].first_chunk::<{ Endpoint::RECORD_BYTES }>().unwrap();
            let endpoint = Endpoint::from_bytes(record).unwrap();
            let mut pair = Connection::new(&poller, pair.connect(&endpoint).unwrap()).unwrap();
            for _ in 0..LIMITS.receives {
                pair.send(world.frame(Kind::Hello, 0, &[])).unwrap().await.unwrap();
            }
            assert!(pair.close().within(PATIENCE).await.has_drained);
        };
        // The completion queue of the `Place` has room for `2 * CLIENTS * LIMITS.completions()` messages. The clients
        // below send one and a half times as many messages in all.
        let count = 3 * CLIENTS * LIMITS.completions() / LIMITS.receives;
        for _ in 0..count {
            timeout(PATIENCE, vanish()).await.expect("the server answers");
        }
        let client = world.client();
        assert_eq!(client.call(b"and me?", PATIENCE).await.as_deref(), Ok(&b"AND ME?"[..]));
        client.close(PATIENCE).await;
        let report = world.end().await;
        assert_eq!((report.served, report.not_connected), (1, count.into()));
    });
}

/// A server breaks the protocol in one way after another. The client names each violation, and connects again.
#[test]
fn a_server_that_breaks_the_protocol_is_named() {
    let domain = domain!();
    finish(async {
        let place = Place::new(domain.clone(), CLIENTS, LIMITS, false).unwrap();
        let mut listener = listen(&place, &domain, 0).await;
        let client = Client::start(&place, listener.address().unwrap());
        let frame = |kind, id| {
            let mut buffer = domain.buffer(FRAME_BYTES).unwrap();
            assert!(Frame::write(&mut buffer, kind, id, b"x"));
            buffer
        };
        let mut short = domain.buffer(4).unwrap();
        short.write(b"shor").unwrap();
        let answers = [
            (frame(Kind::Answer, 77), Violation::UnknownId(77)),
            (frame(Kind::Hello, 0), Violation::Kind(1)),
            (frame(Kind::Request, 0), Violation::Kind(2)),
            (short, Violation::TooShort(4)),
        ];
        let mut expected: Vec<Broken> = Vec::new();
        for data in [&[][..], &[0], &[1, 2]] {
            match place.accept(listener.accept().await.unwrap(), data).await {
                Ok(mut connection) => {
                    timeout(PATIENCE, connection.closed()).await.expect("the client ends the connection");
                }
                // On iWARP, the client can end the connection before the accept is over. On other devices, the message
                // that ends it can overtake the one that makes it.
                Err(error) => {
                    let is_over = matches!(error.downcast_ref(), Some(interlock::cm::Cause::Disconnected));
                    assert!(context().is_iwarp() || is_over, "{error:#}");
                }
            }
            expected.push(Violation::Welcome(data.to_vec()).into());
        }
        for (answer, violation) in answers {
            let mut connection = place.accept(listener.accept().await.unwrap(), &[1]).await.unwrap();
            // On iWARP a server must not send before its client has sent something.
            let hello = connection.next().await.unwrap().unwrap().into_received().unwrap();
            assert_eq!(Frame::parse(&hello).unwrap().kind, Kind::Hello);
            _ = connection.send(answer).unwrap().await;
            timeout(PATIENCE, connection.closed()).await.expect("the client ends the connection");
            expected.push(violation.into());
        }
        until("all of them", || client.report().broken.len() == expected.len()).await;
        let report = client.report();
        assert_eq!((report.connects, report.broken), (expected.len() as u64, expected));
        drop((client, listener));
        place.is_empty(PATIENCE).await.unwrap();
    });
}

// Tests of crashes, of a shutdown, and of connecting again.

#[test]
fn a_client_that_crashes_harms_nobody() {
    let domain = domain!();
    finish(async {
        for &by_records in ways() {
            let mut world = World::new(domain.clone(), by_records).await;
            let honest = world.client();
            assert_eq!(honest.call(b"before", PATIENCE).await.as_deref(), Ok(&b"BEFORE"[..]));
            world.service.close_gate();
            let mortal = world.client();
            let call = |request: &'static [u8]| mortal.call(request, PATIENCE);
            tokio::select! {
                answers = async { tokio::join!(call(b"hold 1"), call(b"hold 2")) } => panic!("{answers:?}"),
                came = world.service.holds(2, PATIENCE) => assert!(came),
            }
            drop(mortal);
            timeout(PATIENCE, world.server.has_served(1)).await.expect("the server notices");
            assert_eq!(honest.call(b"after", PATIENCE).await.as_deref(), Ok(&b"AFTER"[..]));
            let report = honest.close(PATIENCE).await;
            assert_eq!((report.connects, report.broken), (1, vec![]));
            let report = world.end().await;
            let (dead, left) = (&report.clients[0], &report.clients[1]);
            assert!(matches!(dead.broken, Some(Broken::Ended(_))), "{dead:?}");
            assert_eq!((dead.unanswered, dead.answered), (2, 0));
            assert_eq!((left.unanswered, left.answered, left.broken.clone()), (0, 2, None));
        }
    });
}

#[test]
fn a_shutdown_answers_what_is_in_flight() {
    let domain = domain!();
    finish(async {
        for &by_records in ways() {
            let World { place, service, server, at, .. } = World::new(domain.clone(), by_records).await;
            let (busy, idle) = (Arc::new(Client::start(&place, at)), Client::start(&place, at));
            assert_eq!(idle.call(b"idle", PATIENCE).await.as_deref(), Ok(&b"IDLE"[..]));
            service.close_gate();
            let calls: Vec<_> = (0..5)
                .map(|number| {
                    let busy = Arc::clone(&busy);
                    tokio::spawn(async move { busy.call(format!("hold {number}").as_bytes(), PATIENCE).await })
                })
                .collect();
            assert!(service.holds(5, PATIENCE).await);
            let ending = tokio::spawn(server.shut_down(PATIENCE));
            // The shutdown sends a bye to both clients. The idle client leaves. The busy client stays until it has its
            // answers, and counts the bye only when it leaves.
            until("bye", || idle.report().byes == 1).await;
            assert_eq!(busy.report().byes, 0);
            assert!(!ending.is_finished() && calls.iter().all(|call| !call.is_finished()));
            service.open_gate();
            for (number, call) in calls.into_iter().enumerate() {
                assert_eq!(call.await.unwrap(), Ok(format!("HOLD {number}").into_bytes()));
            }
            let report = timeout(PATIENCE, ending).await.unwrap().unwrap();
            let mut answered: Vec<_> = report.clients.iter().map(|client| client.answered).collect();
            answered.sort();
            assert_eq!(answered, [1, 5]);
            assert!(report.clients.iter().all(|client| client.broken.is_none() && client.has_drained), "{report:?}");
            until("bye", || busy.report().byes == 1).await;
            // No server is left.
            assert_eq!(busy.call(b"anybody?", SHORT).await, Err(CallError::TimedOut(SHORT)));
            idle.close(PATIENCE).await;
            let report = Arc::into_inner(busy).unwrap().close(PATIENCE).await;
            assert_eq!((report.connects, report.broken, report.undrained), (1, vec![], 0));
            place.is_empty(PATIENCE).await.unwrap();
        }
    });
}

/// A shutdown does not wait beyond its deadline for a handler that does not end, and still gets all its buffers back.
#[test]
fn a_shutdown_ends_at_its_deadline() {
    let domain = domain!();
    finish(async {
        let World { place, service, server, at, .. } = World::new(domain.clone(), false).await;
        let client = Arc::new(Client::start(&place, at));
        service.close_gate();
        let call = tokio::spawn({
            let client = Arc::clone(&client);
            async move { client.call(b"hold for ever", PATIENCE).await }
        });
        assert!(service.holds(1, PATIENCE).await);
        let before = Instant::now();
        let report = server.shut_down(4 * SHORT).await;
        assert!(before.elapsed() >= 4 * SHORT);
        let [served] = &report.clients[..] else { panic!("{report:?}") };
        assert_eq!((served.broken.clone(), served.unanswered), (Some(Broken::Deadline), 1));
        assert!(served.has_drained);
        assert_eq!(call.await.unwrap(), Err(CallError::Lost));
        until("one broken connection", || client.report().broken.len() == 1).await;
        assert!(matches!(client.report().broken[0], Broken::Ended(_)), "{:?}", client.report());
        drop(client);
        place.is_empty(PATIENCE).await.unwrap();
    });
}

/// A server crashes with a call in flight. The call is lost, and the client finds the next server.
#[test]
fn a_client_connects_again_after_the_server_has_crashed() {
    let domain = domain!();
    finish(async {
        for &by_records in ways() {
            let World { domain, place, service, server, at } = World::new(domain.clone(), by_records).await;
            let client = Arc::new(Client::start(&place, at));
            service.close_gate();
            let call = tokio::spawn({
                let client = Arc::clone(&client);
                async move { client.call(b"hold this", PATIENCE).await }
            });
            assert!(service.holds(1, PATIENCE).await);
            drop(server);
            assert_eq!(call.await.unwrap(), Err(CallError::Lost));
            until("three attempts", || client.report().failed_connects >= 3).await;
            let waiting = tokio::spawn({
                let client = Arc::clone(&client);
                async move { client.call(b"who is next?", PATIENCE).await }
            });
            service.open_gate();
            let server = Server::start(&place, listen(&place, &domain, at.port()).await, service.handler());
            assert_eq!(waiting.await.unwrap(), Ok(b"WHO IS NEXT?".to_vec()));
            let report = Arc::into_inner(client).unwrap().close(PATIENCE).await;
            assert!(report.connects == 2 && report.last_failure.is_some(), "{report:?}");
            assert!(matches!(report.broken[..], [Broken::Ended(End::Disconnected | End::Failed(_))]), "{report:?}");
            let report = server.shut_down(PATIENCE).await;
            assert_eq!((report.clients.len(), report.clients[0].answered), (1, 1));
            place.is_empty(PATIENCE).await.unwrap();
        }
    });
}

// Tests of the whole program.

fn rpc_service(arguments: &[&str]) -> Ended {
    Program::run(example("rpc_service"), arguments)
}

/// The address of the device, for the command line.
fn own_address() -> String {
    address(&context()).to_string()
}

#[test]
fn both_ends_in_one_process_count_as_expected() {
    let at = own_address();
    let both: &[&[&str]] = match (on_hardware(), context().is_iwarp()) {
        (_, false) => &[&[], &["both", "--records"]],
        // The GID of soft iWARP is not an address, so the program must be told one.
        (true, true) => &[&["both", &at]],
        // The address of a soft device is different in each process, so there the program must find it by itself.
        (false, true) => &[&[]],
    };
    for arguments in both {
        rpc_service(arguments)
            .succeeded()
            .says("calls      800 were answered, of 8 clients in ")
            .says("timeouts   4 calls gave up, and 4 late answers were dropped")
            .says("crash      1 client went with a call in flight; the 8 others were answered")
            .says("shutdown   8 calls in flight were answered")
            .says("reconnect  8 clients connected to the next server, and were answered")
            .says("buffers are home");
    }
}

#[test]
fn a_client_calls_a_server_of_another_process() {
    if lacks_need(Need::OtherProcesses) {
        return;
    }
    let (at, ways) = (format!("{}:{}", own_address(), free_port()), [&[][..], &["--records"]]);
    for way in &ways[..if context().is_iwarp() { 1 } else { 2 }] {
        let server = Program::start(example("rpc_service"), &[&["server", &at, "--clients", "3"], *way].concat());
        let server = server.has_said("listens at ");
        for calls in ["1", "500"] {
            let client = rpc_service(&[&["client", &at, "--calls", calls], *way].concat()).succeeded();
            client.says(&format!("{calls} calls were answered over 1 connections"));
        }
        // The next client is killed.
        let killed = Program::start(example("rpc_service"), &[&["client", &at, "--calls", "1000000"], *way].concat());
        killed.has_said("the first call was answered").kill();
        let server = server.end().succeeded();
        server
            .says("a client had 1 answers: left")
            .says("a client had 500 answers: left")
            .says("3 clients were served");
    }
}

#[test]
fn a_bad_argument_is_one_line() {
    rpc_service(&["-h"]).succeeded().says("rpc_service server ADDRESS");
    for (arguments, why) in [
        (&["-z"] as &[&str], "invalid option '-z' (-h"),
        (&["serve"], "\"serve\" is no command (-h"),
        (&["server"], "server takes one ADDRESS (-h"),
        (&["client", "one", "two"], "client takes one ADDRESS (-h"),
        (&["both", "one", "two"], "both takes at most one ADDRESS (-h"),
        (&["client", "nowhere"], "\"nowhere\" is no address"),
        (&["client", "127.0.0.1", "--calls", "0"], "--calls takes a number from 1 to 1000000, not \"0\""),
        (&["-d", "mlx9_9"], "no RDMA device has the name \"mlx9_9\""),
        (&["-d", "soft0", "server", "127.0.0.1"], "soft0 is a soft device, which no other process reaches"),
        (&["-d", "soft0", "client", "127.0.0.1"], "soft0 is a soft device"),
    ] {
        rpc_service(arguments).failed(&format!("rpc_service: {why}"));
    }
}
