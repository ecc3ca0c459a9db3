//! Connections by address, in unusual orders of steps that a program may take by mistake or after failures. The tests
//! are the same on every device.
#![cfg(feature = "cm")]

use interlock::aio::cm::SharedChannel;
use interlock::aio::{SharedPoller, block_on};
use interlock::cm::{
    self, AcceptData, Accepting, Bound, Cause, Channel, CmError, ConnectData, Connecting, Connection, Failed, Idle,
    Listener, Parameters, Progress, RejectData, RejectReason, Request, Resolved,
};
use interlock::device::GidKind;
use interlock::event::Readiness;
use interlock::number::AckTimeout;
use interlock::state::DeviceState;
use interlock::{AnyQueuePair, Checked, Completion, Limits};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::Duration;
use std::{fs, thread};
use support::{Need, PATIENCE, Promise, Side, address, context, eventually, lacks, lacks_need, message, on_hardware};

const SHORT: Duration = Duration::from_millis(300);
const NOW: Duration = Duration::ZERO;
const FOR_EVER: Duration = Duration::MAX;

fn channel() -> Channel {
    Channel::open(&context()).unwrap()
}

fn side() -> Side<Checked> {
    Side::new(context().checked_domain().unwrap())
}

fn any_port() -> SocketAddr {
    SocketAddr::new(address(&context()), 0)
}

fn bound(channel: &Channel) -> Bound {
    Idle::new(channel).unwrap().bind(any_port()).unwrap()
}

fn listener_on(channel: &Channel) -> (Listener, SocketAddr) {
    let listener = bound(channel).listen(0).unwrap();
    let at = listener.local_address().unwrap();
    (listener, at)
}

fn listener() -> (Listener, SocketAddr) {
    listener_on(&channel())
}

fn resolved(channel: &Channel, at: SocketAddr) -> Resolved {
    Idle::new(channel).unwrap().resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap()
}

fn ask(resolved: Resolved, side: &mut Side<Checked>) -> Connecting<Checked> {
    resolved.connect(side.take(), &Parameters::default(), &ConnectData::none()).unwrap()
}

fn accept(request: Request, side: &mut Side<Checked>) -> Accepting<Checked> {
    request.accept(side.take(), &Parameters::default(), &AcceptData::none()).unwrap()
}

type End = (Side<Checked>, Connection<Checked>);

/// A client on `channel`, and its server.
fn connected_on(channel: &Channel, listener: &mut Listener, at: SocketAddr) -> [End; 2] {
    let [mut client, mut server] = [side(), side()];
    let asking = ask(resolved(channel, at), &mut client);
    let accepting = accept(listener.next(PATIENCE).unwrap(), &mut server);
    let of_client = asking.wait(PATIENCE).unwrap();
    [(client, of_client), (server, accepting.wait(PATIENCE).unwrap())]
}

fn connected() -> [End; 2] {
    let (mut listener, at) = listener();
    connected_on(&channel(), &mut listener, at)
}

/// A message from the first to the second.
fn talk([(of_from, from), (of_to, to)]: &mut [End; 2]) {
    to.pair.post_receive(of_to.domain.buffer(64).unwrap()).unwrap();
    from.pair.post_send(message(&of_from.domain, b"hello")).unwrap();
    of_from.poller.wait(PATIENCE).unwrap().check().unwrap();
    assert_eq!(&of_to.received()[..], b"hello");
}

fn serves(listener: &mut Listener, at: SocketAddr) {
    talk(&mut connected_on(&channel(), listener, at));
}

#[track_caller]
fn is_refusal(cause: &Cause) {
    assert!(
        matches!(cause, Cause::Rejected { reason, .. } if *reason == RejectReason::CONSUMER || reason.0 < 0),
        "{cause:?}"
    );
}

/// Checks what a client finds after its server has ended. The server's answer may have come before that, and an iWARP
/// device may have connected the client. A server that ends before it hears that the client is connected sends a
/// rejection, and that ends the client's connection.
#[track_caller]
fn is_given_up(asking: Connecting<Checked>) {
    match asking.wait(PATIENCE) {
        Ok(mut connection) => {
            let end = connection.wait_end(PATIENCE).unwrap();
            assert!(matches!(end, Some(Cause::Disconnected | Cause::Rejected { .. })), "{end:?}");
        }
        // If the rejection comes while the client establishes the connection, the cause is `PeerGone`.
        Err(failed) => {
            let is_end = matches!(failed.cause, Cause::Rejected { .. } | Cause::Disconnected);
            let is_crossed = on_hardware() && matches!(failed.cause, Cause::PeerGone(_));
            assert!(is_end || is_crossed, "{failed:?}");
        }
    }
}

#[track_caller]
fn is_disconnected(end: Option<Cause>) {
    assert!(matches!(end, Some(Cause::Disconnected)), "{end:?}");
}

#[track_caller]
fn is_errno(cause: &Cause, errno: i32) {
    assert!(matches!(cause, Cause::Call(error) if error.errno() == errno), "{cause:?}");
}

/// Waits until an event loop may sleep: no poll would find an event, and the descriptor is not readable. (Soft devices
/// may make the descriptor readable for their timers.)
#[track_caller]
fn may_sleep(channel: &Channel, readiness: &Readiness) {
    assert!(eventually(|| !channel.poll().unwrap() && !readiness.wait(NOW).unwrap()));
}

#[test]
fn a_number_that_is_free_stays_free() {
    let [(_one, first), (_two, second)] = connected();
    let mut ended = first.disconnect().unwrap();
    let mut other = second.disconnect().unwrap();
    for _ in 0..2 {
        assert!(ended.wait_for_number(PATIENCE).unwrap());
        assert!(ended.wait_for_number(NOW).unwrap(), "it was free before");
        assert!(other.wait_for_number(PATIENCE).unwrap());
    }
}

#[test]
fn the_number_comes_free_although_the_peer_was_dropped() {
    let [(_one, first), (_two, second)] = connected();
    let mut ended = first.disconnect().unwrap();
    drop(second);
    assert!(ended.wait_for_number(FOR_EVER).unwrap());
    // Now the peer is dropped before this side disconnects. Each poll of this side reports the end of the peer.
    let [(mut side, mut first), (_two, second)] = connected();
    first.pair.post_receive(side.domain.buffer(64).unwrap()).unwrap();
    drop(second);
    is_disconnected(first.wait_end(FOR_EVER).unwrap());
    assert!(side.poller.wait(PATIENCE).unwrap().check().is_err());
    for _ in 0..2 {
        thread::sleep(4 * SHORT);
        is_disconnected(first.poll_end().unwrap());
    }
    let mut ended = first.disconnect().unwrap();
    ended.pair.drain(&mut side.poller, PATIENCE, drop).unwrap();
    assert!(ended.wait_for_number(PATIENCE).unwrap());
}

#[test]
fn a_pair_that_was_rejected_connects_with_the_receive_that_it_had() {
    if lacks_need(Need::ThreeSteps) {
        return;
    }
    let (mut listener, at) = listener();
    let [mut client, mut server] = [side(), side()];
    let receive = client.pair.as_mut().unwrap().post_receive(client.domain.buffer(64).unwrap()).unwrap();
    for has_rejected in [true, false, true] {
        let asking = ask(resolved(&channel(), at), &mut client);
        let request = listener.next(PATIENCE).unwrap();
        let failed = if has_rejected {
            request.reject(&RejectData::none()).unwrap();
            asking.wait(PATIENCE).unwrap_err()
        } else {
            asking.wait(NOW).unwrap_err()
        };
        let AnyQueuePair::Init(pair) = failed.value else { panic!("{failed:?}") };
        assert_eq!(pair.query_state().unwrap(), DeviceState::Init);
        client.pair = Some(pair);
    }
    let asking = ask(resolved(&channel(), at), &mut client);
    let accepting = accept(listener.next(PATIENCE).unwrap(), &mut server);
    let _of_client = asking.wait(PATIENCE).unwrap();
    let mut of_server = accepting.wait(PATIENCE).unwrap();
    of_server.pair.post_send(message(&server.domain, b"at last")).unwrap();
    let completion = client.poller.wait(PATIENCE).unwrap();
    assert_eq!(completion.id(), receive);
    assert_eq!(&completion.check().unwrap().into_received().unwrap()[..], b"at last");
}

#[test]
fn a_port_is_free_at_once_although_its_connections_go_on() {
    let (mut listener, at) = listener();
    let mut ends = connected_on(&channel(), &mut listener, at);
    let (mut waiting, other) = (side(), channel());
    let asking = ask(resolved(&other, at), &mut waiting);
    drop(listener);
    let failed = asking.wait(PATIENCE).unwrap_err();
    // On iWARP the listener sometimes ends before it has read the request. Then the cause is `PeerGone`. But if the
    // kernel had already read the request, it drops the request with the listener, and no answer comes.
    let is_dropped = on_hardware() && context().is_iwarp() && matches!(failed.cause, Cause::Unreachable { .. });
    assert!(matches!(failed.cause, Cause::Rejected { .. } | Cause::PeerGone(_)) || is_dropped, "{failed:?}");
    let again = Idle::new(&other).unwrap().bind(at).unwrap();
    assert_eq!(again.local_address(), Some(at));
    let mut again = match again.listen(0) {
        Ok(again) => again,
        Err(failed) => {
            // TCP keeps the port taken while a connection uses it.
            assert!(context().is_iwarp() && on_hardware(), "{failed:?}");
            is_errno(&failed.cause, libc::EADDRINUSE);
            return;
        }
    };
    serves(&mut again, at);
    talk(&mut ends);
}

#[test]
fn a_port_that_was_bound_or_listened_to_in_vain_is_free() {
    let channel = channel();
    let first = bound(&channel);
    let at = first.local_address().unwrap();
    for _ in 0..20 {
        let failed = Idle::new(&channel).unwrap().bind(at).unwrap_err();
        is_errno(&failed.cause, libc::EADDRINUSE);
        // The identifier that was refused binds to another port.
        assert_ne!(failed.value.bind(any_port()).unwrap().local_address(), Some(at));
    }
    drop(first);
    for _ in 0..20 {
        drop(Idle::new(&channel).unwrap().bind(at).unwrap().listen(1).unwrap());
    }
}

#[test]
fn a_time_of_zero_is_only_a_look() {
    let (mut quiet, at) = listener();
    assert!(matches!(quiet.next(NOW), Err(CmError::TimedOut(NOW))));
    let failed = cm::connect(at, side().take(), &ConnectData::none(), NOW).unwrap_err();
    // Perhaps rdma_cm gives up on the address before this side times out. Then the cause is `Address`.
    assert!(matches!(failed.cause, Cause::TimedOut(NOW) | Cause::Address(_)), "{failed:?}");
    let is_untouched = matches!(failed.value, AnyQueuePair::Init(_));
    assert!(is_untouched || context().is_iwarp(), "{:?}", failed.value);
    let failed = ask(resolved(&channel(), at), &mut side()).wait(NOW).map(drop).unwrap_err();
    assert!(matches!(failed.cause, Cause::TimedOut(NOW)), "{failed:?}");
    // Use a second listener: requests of the clients that gave up can still come to the first listener.
    let (mut listener, at) = listener();
    let [mut client, mut server] = [side(), side()];
    let asking = ask(resolved(&channel(), at), &mut client);
    match accept(listener.next(PATIENCE).unwrap(), &mut server).wait(NOW) {
        Ok(mut connection) => {
            assert!(context().is_iwarp(), "the client has not answered");
            assert!(connection.wait_end(NOW).unwrap().is_none());
            let mut of_client = asking.wait(PATIENCE).unwrap();
            assert!(connection.disconnect().unwrap().wait_for_number(NOW).unwrap());
            is_disconnected(of_client.wait_end(PATIENCE).unwrap());
        }
        Err(failed) => {
            assert!(matches!(failed.cause, Cause::TimedOut(NOW)), "{failed:?}");
            assert!(matches!(failed.value, AnyQueuePair::Errored(_)), "{:?}", failed.value);
            is_given_up(asking);
        }
    }
    serves(&mut listener, at);
}

#[test]
fn the_longest_time_is_for_ever() {
    let (mut listener, at) = listener();
    let (is_up, server_is_up) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut server = side();
        let request = listener.next(FOR_EVER).unwrap();
        let mut connection = accept(request, &mut server).wait(FOR_EVER).unwrap();
        is_up.send(()).unwrap();
        is_disconnected(connection.wait_end(FOR_EVER).unwrap());
        drop(connection.disconnect().unwrap());
        let failed = listener.next(SHORT);
        assert!(matches!(failed, Err(CmError::TimedOut(SHORT))), "{failed:?}");
        drop(listener);
    });
    let mut client = side();
    let idle = Idle::new(&channel()).unwrap();
    let resolved = idle.resolve(at, FOR_EVER).unwrap().wait(FOR_EVER).unwrap();
    let connection = ask(resolved, &mut client).wait(FOR_EVER).unwrap();
    // On iWARP, the server's wait would fail if this side ended earlier.
    server_is_up.recv().unwrap();
    assert!(connection.disconnect().unwrap().wait_for_number(FOR_EVER).unwrap());
    server.join().unwrap();
    let failed = cm::connect(at, side().take(), &ConnectData::none(), FOR_EVER).unwrap_err();
    assert!(matches!(failed.cause, Cause::Rejected { .. }), "{failed:?}");
}

#[test]
fn both_sides_know_both_addresses() {
    let (mut listener, at) = listener();
    let [mut client, mut server] = [side(), side()];
    let resolved = resolved(&channel(), at);
    let own = resolved.local_address().unwrap();
    assert_ne!(own.port(), 0);
    assert_eq!((resolved.device(), resolved.port()), (context().name(), 1));
    let asking = ask(resolved, &mut client);
    let request = listener.next(PATIENCE).unwrap();
    assert_eq!((request.device(), request.port()), (context().name(), 1));
    assert_eq!((request.local_address(), request.peer_address().map(|peer| peer.ip())), (Some(at), Some(own.ip())));
    let accepting = accept(request, &mut server);
    let (of_client, of_server) = (asking.wait(PATIENCE).unwrap(), accepting.wait(PATIENCE).unwrap());
    assert_eq!(of_client.peer_address(), Some(at));
    assert_eq!(of_server.local_address(), Some(at));
    assert_eq!(of_server.peer_address(), of_client.local_address());
}

#[test]
fn an_identifier_whose_address_failed_takes_options_and_resolves_but_does_not_bind() {
    let (mut listener, at) = listener();
    let IpAddr::V4(ip) = at.ip() else { panic!("not an address of IPv4") };
    let [a, b, c, _] = ip.octets();
    let channel = channel();
    let mut idle = Idle::new(&channel).unwrap();
    for _ in 0..2 {
        let failed = idle.resolve(SocketAddr::from(([a, b, c, 77], 7471)), NOW).unwrap().wait(PATIENCE).unwrap_err();
        assert!(matches!(failed.cause, Cause::Address(_)), "{failed:?}");
        idle = failed.value.unwrap();
        idle.set_type_of_service(0xb8).unwrap();
        idle.set_ack_timeout(AckTimeout::new(14).unwrap()).unwrap();
        let failed = idle.bind(any_port()).unwrap_err();
        is_errno(&failed.cause, libc::EINVAL);
        idle = failed.value;
    }
    let resolved = idle.resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    let [mut client, mut server] = [side(), side()];
    let asking = ask(resolved, &mut client);
    let accepting = accept(listener.next(PATIENCE).unwrap(), &mut server);
    let of_client = asking.wait(PATIENCE).unwrap();
    talk(&mut [(client, of_client), (server, accepting.wait(PATIENCE).unwrap())]);
}

/// The address comes from a GID, and the GIDs of an iWARP device contain no addresses.
#[test]
fn a_host_connects_to_itself_by_ipv6() {
    let gids = context().active_port().unwrap().gids().to_vec();
    let own = gids.iter().filter(|row| row.kind != GidKind::Iwarp).map(|row| Ipv6Addr::from(row.gid.0));
    let Some(own) = own.into_iter().find(|ip| ip.to_ipv4_mapped().is_none()) else {
        writeln!(io::stdout(), "not applicable: needs a GID that is an address of IPv6").expect("standard output");
        return;
    };
    // Each line of this file begins with an address in hexadecimal digits and the index of its interface.
    let digits: String = own.octets().map(|byte| format!("{byte:02x}")).concat();
    let interfaces = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let index = interfaces.lines().find_map(|line| line.strip_prefix(&digits)?.split_whitespace().next());
    let scope = index.map_or(0, |index| u32::from_str_radix(index, 16).unwrap());
    let bound = Idle::new(&channel()).unwrap().bind(SocketAddrV6::new(own, 0, 0, scope).into()).unwrap();
    let at = bound.local_address().unwrap();
    assert_eq!(at.ip(), IpAddr::V6(own));
    serves(&mut bound.listen(0).unwrap(), at);
}

#[test]
fn private_data_of_any_length_arrive() {
    let (mut listener, at) = listener();
    for len in [0, 1, 3, 53] {
        let bytes = vec![9; len];
        let [mut client, mut server] = [side(), side()];
        let asking = resolved(&channel(), at)
            .connect(client.take(), &Parameters::default(), &ConnectData::raw(&bytes).unwrap())
            .unwrap();
        let request = listener.next(PATIENCE).unwrap();
        let seen = request.data().padded();
        assert_eq!(seen.len(), if context().is_iwarp() { len } else { 56 }, "on iWARP nothing is padded");
        assert!(seen.starts_with(&bytes) && seen[len..].iter().all(|&byte| byte == 0), "{seen:?}");
        assert_eq!(request.data().framed(), None);
        let data = AcceptData::framed(&bytes).unwrap();
        let accepting = request.accept(server.take(), &Parameters::default(), &data).unwrap();
        let connection = asking.wait(PATIENCE).unwrap();
        assert_eq!(connection.data.framed(), Some(&bytes[..]));
        let seen = accepting.wait(PATIENCE).unwrap();
        assert!(seen.data.padded().starts_with(&bytes));
    }
}

#[test]
fn two_listeners_on_one_channel_get_their_own_requests() {
    let channel = channel();
    let (mut one, at_one) = listener_on(&channel);
    let (mut two, at_two) = listener_on(&channel);
    let mut sides = [side(), side(), side()];
    let to = [at_two, at_one, at_two];
    let mut asking: Vec<_> = sides.iter_mut().zip(to).map(|(side, at)| ask(resolved(&channel, at), side)).collect();
    assert_eq!(one.next(PATIENCE).unwrap().local_address(), Some(at_one));
    for _ in 0..2 {
        assert_eq!(two.next(PATIENCE).unwrap().local_address(), Some(at_two));
    }
    assert!(one.poll().unwrap().is_none() && two.poll().unwrap().is_none());
    for asking in asking.drain(..) {
        is_refusal(&asking.wait(PATIENCE).unwrap_err().cause);
    }
}

#[test]
fn a_request_outlives_its_listener_and_its_channel() {
    let (mut listener, at) = listener();
    let mut ends = [side(), side()];
    let asking = ask(resolved(&channel(), at), &mut ends[0]);
    let request = listener.next(PATIENCE).unwrap();
    drop(listener);
    thread::sleep(SHORT);
    let accepting = accept(request, &mut ends[1]);
    let (of_client, of_server) = (asking.wait(PATIENCE).unwrap(), accepting.wait(PATIENCE).unwrap());
    let [client, server] = ends;
    talk(&mut [(client, of_client), (server, of_server)]);
}

#[test]
fn the_reject_of_a_client_that_gave_up_says_so_or_does_nothing() {
    let (mut listener, at) = listener();
    // On a real device, it takes some time until this side learns that the client has ended.
    let mut pause = SHORT;
    loop {
        let asking = ask(resolved(&channel(), at), &mut side());
        let request = listener.next(PATIENCE).unwrap();
        drop(asking);
        thread::sleep(pause);
        match request.reject(&RejectData::raw(&[7; 148]).unwrap()) {
            Err(error) => {
                assert!([libc::EINVAL, libc::ECONNRESET, libc::EPIPE].contains(&error.errno()), "{error:?}");
                break;
            }
            // TCP takes data even if the peer no longer reads them.
            Ok(()) if context().is_iwarp() => break,
            Ok(()) => pause *= 2,
        }
        assert!(on_hardware() && pause < PATIENCE, "this side does not learn it");
    }
    serves(&mut listener, at);
}

#[test]
fn a_panic_between_two_steps_rejects_and_the_listener_goes_on() {
    let (mut listener, at) = listener();
    for has_accepted in [false, true] {
        let [mut client, mut server] = [side(), side()];
        let asking = ask(resolved(&channel(), at), &mut client);
        let request = listener.next(PATIENCE).unwrap();
        let panicked = thread::spawn(move || {
            let _held = if has_accepted { Ok(accept(request, &mut server)) } else { Err(request) };
            panic!("this test panics on purpose");
        });
        assert!(panicked.join().is_err());
        is_given_up(asking);
    }
    serves(&mut listener, at);
}

/// A thread that polls one identifier also wakes the tasks that wait for other identifiers of the channel.
#[test]
fn the_panic_of_another_tasks_waker_loses_no_event() {
    struct Panicking;
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic!("this test panics on purpose");
        }
    }
    let channel = channel();
    let shared = SharedChannel::new(channel.clone());
    let _driver = shared.driver(); // the driver does not run, so only this test takes events
    let mut of_task = shared.listen(any_port()).unwrap();
    let (mut listener, at) = listener_on(&channel);
    let to = [of_task.local_address().unwrap(), at];
    let waker = Waker::from(Arc::new(Panicking));
    assert!(pin!(of_task.accept()).poll(&mut TaskContext::from_waker(&waker)).is_pending());
    let mut sides = [side(), side()];
    let _asking: Vec<_> =
        sides.iter_mut().zip(to).map(|(side, at)| ask(resolved(&self::channel(), at), side)).collect();
    // Both requests should be in the channel before the poll. But on a real device, each can come later.
    thread::sleep(SHORT);
    let mut taken = None;
    let has_panicked = eventually(|| match catch_unwind(AssertUnwindSafe(|| listener.poll())) {
        Err(_) => true,
        Ok(found) => {
            taken = taken.take().or(found.unwrap());
            false
        }
    });
    assert!(has_panicked, "the waker has panicked");
    let request = taken.unwrap_or_else(|| listener.next(PATIENCE).unwrap());
    assert_eq!(request.local_address(), Some(at));
    assert!(block_on(of_task.accept()).is_ok());
}

#[test]
fn what_is_in_flight_comes_back_whatever_ends_first() {
    for order in 0..4 {
        let [(client, mut of_client), (server, mut of_server)] = connected();
        for _ in 0..3 {
            of_client.pair.post_receive(client.domain.buffer(64).unwrap()).unwrap();
            of_server.pair.post_receive(server.domain.buffer(64).unwrap()).unwrap();
        }
        let pairs = match order {
            // Both sides disconnect.
            0 => [of_client.disconnect().unwrap().pair, of_server.disconnect().unwrap().pair],
            // The link of the server ends without its pair.
            1 => {
                drop(of_server.link);
                is_disconnected(of_client.wait_end(PATIENCE).unwrap());
                [of_client.disconnect().unwrap().pair, of_server.pair.into_error().unwrap()]
            }
            // The link of the client ends while its pair is split into halves.
            2 => {
                let Connection { pair, link, .. } = of_client;
                let (sends, receives) = pair.split();
                drop(link);
                is_disconnected(of_server.wait_end(PATIENCE).unwrap());
                [sends.join(receives).unwrap().into_error().unwrap(), of_server.disconnect().unwrap().pair]
            }
            // The domains end first.
            _ => {
                drop((client.domain, server.domain));
                [of_client.disconnect().unwrap().pair, of_server.disconnect().unwrap().pair]
            }
        };
        for (mut pair, mut poller) in pairs.into_iter().zip([client.poller, server.poller]) {
            let mut count = 0;
            let flushed = |completion: Completion<Checked>| {
                assert!(completion.check().unwrap_err().into_buffer().is_some());
                count += 1;
            };
            pair.drain(&mut poller, PATIENCE, flushed).unwrap();
            assert_eq!(count, 3, "{order}");
        }
    }
}

#[test]
fn a_link_waits_on_one_thread_while_the_pair_works_on_another() {
    let [(mut client, of_client), (mut server, mut of_server)] = connected();
    let Connection { mut pair, mut link, .. } = of_client;
    let watcher = thread::spawn(move || {
        is_disconnected(link.wait_end(FOR_EVER).unwrap());
        is_disconnected(link.wait_end(FOR_EVER).unwrap());
        is_disconnected(link.poll_end().unwrap());
    });
    for _ in 0..20 {
        of_server.pair.post_receive(server.domain.buffer(64).unwrap()).unwrap();
        pair.post_send(message(&client.domain, b"work")).unwrap();
        client.poller.wait(PATIENCE).unwrap().check().unwrap();
        assert_eq!(&server.received()[..], b"work");
    }
    drop(of_server);
    watcher.join().unwrap();
    pair.into_error().unwrap().drain(&mut client.poller, PATIENCE, drop).unwrap();
}

#[test]
fn four_threads_connect_on_one_channel_while_two_accept() {
    let channel = channel();
    let (listener, at) = listener_on(&channel);
    let (listener, rounds) = (Mutex::new(listener), 3);
    let accept_some = || {
        for _ in 0..2 * rounds {
            let request = listener.lock().unwrap().next(PATIENCE).unwrap();
            let mut server = side();
            server.pair.as_mut().unwrap().post_receive(server.domain.buffer(64).unwrap()).unwrap();
            let mut connection = accept(request, &mut server).wait(PATIENCE).unwrap();
            assert_eq!(&server.received()[..], b"hello");
            connection.pair.post_send(message(&server.domain, b"bye")).unwrap();
            is_disconnected(connection.wait_end(PATIENCE).unwrap());
        }
    };
    let connect_some = || {
        for _ in 0..rounds {
            let mut client = side();
            client.pair.as_mut().unwrap().post_receive(client.domain.buffer(64).unwrap()).unwrap();
            let mut connection = ask(resolved(&channel, at), &mut client).wait(PATIENCE).unwrap();
            connection.pair.post_send(message(&client.domain, b"hello")).unwrap();
            assert_eq!(&client.received()[..], b"bye");
        }
    };
    thread::scope(|scope| {
        drop([scope.spawn(accept_some), scope.spawn(accept_some)]);
        drop([(); 4].map(|()| scope.spawn(connect_some)));
    });
    may_sleep(&channel, &channel.readiness().unwrap());
}

#[test]
fn one_who_waits_in_vain_does_not_hold_up_the_others() {
    let channel = channel();
    let (mut quiet, at_quiet) = listener_on(&channel);
    let (mut busy, at) = listener_on(&channel);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| quiet.next(PATIENCE).map(drop));
        thread::sleep(SHORT);
        talk(&mut connected_on(&channel, &mut busy, at));
        assert!(!waiting.is_finished(), "the others had to wait");
        let _asking = ask(resolved(&channel, at_quiet), &mut side());
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn polls_and_waits_may_be_mixed() {
    let (mut listener, at) = listener();
    let channel = channel();
    let readiness = channel.readiness().unwrap();
    let [mut client, mut server] = [side(), side()];
    let resolving = Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap();
    assert!(readiness.wait(PATIENCE).unwrap());
    let resolved = match resolving.poll().unwrap() {
        Progress::Done(resolved) => resolved,
        // The address is resolved, but the route is not resolved yet.
        Progress::Pending(again) => again.wait(PATIENCE).unwrap(),
    };
    may_sleep(&channel, &readiness);
    let mut asking = ask(resolved, &mut client);
    let accepting = accept(listener.next(PATIENCE).unwrap(), &mut server);
    let mut of_client = loop {
        assert!(readiness.wait(PATIENCE).unwrap());
        match asking.poll().unwrap() {
            Progress::Done(connection) => break connection,
            Progress::Pending(again) => asking = again,
        }
    };
    drop(accepting.wait(PATIENCE).unwrap());
    assert!(eventually(|| channel.poll().unwrap()) && readiness.wait(NOW).unwrap());
    is_disconnected(of_client.wait_end(NOW).unwrap());
    may_sleep(&channel, &readiness);
}

#[test]
fn the_descriptor_outlives_its_channel() {
    let (mut listener, at) = listener();
    let channel = channel();
    let [one, two] = [(); 2].map(|()| channel.readiness().unwrap());
    let mut client = side();
    let asking = ask(resolved(&channel, at), &mut client);
    drop(channel);
    drop(listener.next(PATIENCE).unwrap());
    assert!(one.wait(PATIENCE).unwrap() && two.wait(PATIENCE).unwrap());
    drop(asking);
    assert!(eventually(|| !one.wait(NOW).unwrap() && !two.wait(NOW).unwrap()));
}

#[test]
fn what_is_dropped_with_an_unread_event_leaves_the_loop_asleep() {
    let (mut listener, at) = listener();
    let channel = channel();
    let readiness = channel.readiness().unwrap();
    let resolving = Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap();
    assert!(readiness.wait(PATIENCE).unwrap());
    drop(resolving);
    may_sleep(&channel, &readiness);
    let asking = ask(resolved(&channel, at), &mut side());
    drop(listener.next(PATIENCE).unwrap());
    assert!(eventually(|| channel.poll().unwrap()), "the word that it was rejected");
    drop(asking);
    may_sleep(&channel, &readiness);
    for is_ended in [false, true] {
        let [(_client, mut of_client), (_server, of_server)] = connected_on(&channel, &mut listener, at);
        drop(of_server);
        assert!(eventually(|| channel.poll().unwrap()), "the word that the peer has ended");
        if is_ended {
            is_disconnected(of_client.poll_end().unwrap());
            let ended = of_client.disconnect().unwrap();
            may_sleep(&channel, &readiness);
            drop(ended);
        } else {
            drop(of_client);
        }
        may_sleep(&channel, &readiness);
    }
}

#[test]
fn a_scoped_domain_ends_although_its_connect_was_given_up() {
    let (mut listener, at) = listener();
    for _ in 0..3 {
        let failed = context()
            .with_domain(|domain| {
                let mut side = Side::new(domain);
                let mut pair = side.take();
                pair.post_receive(side.domain.buffer(64).unwrap()).unwrap();
                let asking = resolved(&channel(), at).connect(pair, &Parameters::default(), &ConnectData::none());
                asking.unwrap().wait(NOW).map(drop).map_err(Failed::into_cause)
            })
            .unwrap()
            .unwrap_err();
        assert!(matches!(failed, Cause::TimedOut(NOW)), "{failed:?}");
    }
    while let Ok(request) = listener.next(SHORT) {
        drop(request);
    }
    // Use a second listener: requests of the clients that gave up can still come to the first listener.
    let (mut listener, at) = self::listener();
    serves(&mut listener, at);
}

#[test]
fn a_pair_connects_although_nobody_listened_any_more_when_its_route_was_known() {
    let (listener, at) = listener();
    let route = resolved(&channel(), at);
    drop(listener);
    let [mut client, mut server] = [side(), side()];
    let failed = ask(route, &mut client).wait(PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::Rejected { .. }), "{failed:?}");
    match failed.value {
        AnyQueuePair::Init(pair) if !lacks(Promise::SparedPairs) => client.pair = Some(pair),
        AnyQueuePair::Errored(_) if lacks(Promise::SparedPairs) => client = side(),
        other => panic!("{other:?}"),
    }
    let (mut listener, at) = self::listener();
    let asking = ask(resolved(&channel(), at), &mut client);
    let accepting = accept(listener.next(PATIENCE).unwrap(), &mut server);
    let of_client = asking.wait(PATIENCE).unwrap();
    talk(&mut [(client, of_client), (server, accepting.wait(PATIENCE).unwrap())]);
}

// Tests with tasks.

#[test]
fn tasks_and_threads_share_a_channel() {
    let (channel, domain) = (channel(), context().checked_domain().unwrap());
    let (queue, poller) = domain.completion_queue(10 * Limits::default().completions()).unwrap();
    let (poller, shared) = (SharedPoller::new(poller), SharedChannel::new(channel.clone()));
    let driver = shared.driver().unwrap();
    let driver = thread::spawn(move || driver.run_on_thread().unwrap());
    let mut listener = shared.listen(any_port()).unwrap();
    let at = listener.local_address().unwrap();
    for _ in 0..3 {
        let (client, is_up) = mpsc::channel();
        let blocking = thread::spawn({
            let channel = channel.clone();
            move || {
                let mut side = side();
                let connection = ask(resolved(&channel, at), &mut side).wait(PATIENCE).unwrap();
                is_up.recv().unwrap();
                drop(connection);
            }
        });
        let port = context().active_port().unwrap();
        let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
        let accepting =
            async { listener.accept().await.unwrap().accept(&poller, pair, &AcceptData::none(), PATIENCE).await };
        let mut connection = block_on(accepting).unwrap();
        client.send(()).unwrap();
        let end = block_on(connection.closed());
        assert!(matches!(end, interlock::aio::End::Disconnected), "{end:?}");
        blocking.join().unwrap();
    }
    drop((listener, shared));
    driver.join().unwrap();
}
