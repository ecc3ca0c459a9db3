//! Connections by address over a network with delays: hosts that do not answer, servers that are late, messages that
//! overtake others.
#![cfg(feature = "cm")]

use interlock::cm::{self, AcceptData, Cause, Channel, ConnectData, Connecting, Idle, Parameters};
use interlock::memory::Foreign;
use interlock::{AnyQueuePair, Checked, Context, LocalWrite};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::{
    Counted, Need, PATIENCE, Promise, Side, address, another_device, context, eventually, lacks, lacks_need, message,
    on_hardware,
};

const SHORT: Duration = Duration::from_secs(1);

fn side() -> Side<Checked> {
    Side::new(context().checked_domain().unwrap())
}

fn resolved(to: SocketAddr) -> cm::Resolved {
    let channel = Channel::open(&context()).unwrap();
    Idle::new(&channel).unwrap().resolve(to, PATIENCE).unwrap().wait(PATIENCE).unwrap()
}

fn connecting(side: &mut Side<Checked>, to: SocketAddr) -> Connecting<Checked> {
    resolved(to).connect(side.take(), &Parameters::default(), &ConnectData::none()).unwrap()
}

/// CM005, on both sides.
#[test]
fn a_pair_of_another_device_is_refused_and_comes_back() {
    let context = context();
    let mut listener = cm::listen(&context, (address(&context), 0)).unwrap();
    let at = listener.local_address().unwrap();
    let other = Context::open(&another_device().expect("a second device")).unwrap();
    let stranger = || Side::new(other.checked_domain().unwrap()).take();
    let failed = resolved(at).connect(stranger(), &Parameters::default(), &ConnectData::none()).unwrap_err();
    let Cause::OtherDevice { wanted, found } = &failed.cause else { panic!("{failed:?}") };
    assert_eq!((wanted, found), (&format!("{} port 1", context.name()), &format!("{} port 1", other.name())));
    let (again, _stranger) = failed.value;
    let mut client = side();
    let connecting = again.connect(client.take(), &Parameters::default(), &ConnectData::none()).unwrap();
    let request = listener.next(PATIENCE).unwrap();
    let failed = request.accept(stranger(), &Parameters::default(), &AcceptData::none()).unwrap_err();
    assert!(matches!(failed.cause, Cause::OtherDevice { .. }), "{failed:?}");
    assert!(matches!(failed.value, AnyQueuePair::Init(_)));
    let failed = connecting.wait(PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::Rejected { .. }), "{failed:?}");
}

/// An address that no host has, but to which the kernel sends packets: tests/rxe/devices configures it.
fn silence() -> SocketAddr {
    let IpAddr::V4(own) = address(&context()) else { panic!("not an address of IPv4") };
    let [a, b, c, _] = own.octets();
    SocketAddr::from(([a, b, c, 3], 7471))
}

/// CM016
#[test]
fn silence_costs_no_more_than_the_timeout() {
    if lacks_need(Need::SilentHost) {
        return;
    }
    assert!((0..3).any(|_| silence_costs_little()), "the wait or the drop takes too long each time");
}

/// One attempt: whether neither the wait nor the drop took much longer than the timeout. On iWARP, TCP gives up after
/// seven seconds, and nothing may wait for that.
fn silence_costs_little() -> bool {
    let freed = Arc::new(AtomicUsize::new(0));
    let mut client = side();
    let memory = client.domain.register::<LocalWrite, _>(Foreign(Counted::new(8, &freed))).unwrap();
    client.pair.as_mut().unwrap().post_receive(memory.split().1).unwrap();
    let start = Instant::now();
    let failed = connecting(&mut client, silence()).wait(SHORT).unwrap_err();
    if context().is_iwarp() && matches!(failed.cause, Cause::Call(_)) {
        // This thread stood still until TCP gave up.
        return false;
    }
    assert!(matches!(failed.cause, Cause::TimedOut(_)), "{failed:?}");
    // On iWARP the pair does not come back yet: a thread of the library has it until TCP gives up.
    assert!(match &failed.value {
        AnyQueuePair::Init(_) => !context().is_iwarp(),
        AnyQueuePair::Vacant => context().is_iwarp(),
        _ => false,
    });
    assert!(start.elapsed() >= SHORT);
    drop(failed);
    let is_in_time = start.elapsed() < 5 * SHORT;
    assert!(eventually(|| {
        drop(client.poller.poll().unwrap());
        freed.load(Ordering::Relaxed) == 1
    }));
    is_in_time
}

/// CM016. On iWARP the silence ends when TCP gives up: tests/rxe/devices has set that to a few seconds.
#[test]
fn a_pair_may_be_connected_after_a_silence() {
    if lacks_need(Need::SilentHost) {
        return;
    }
    let mut client = side();
    let patience = if context().is_iwarp() { PATIENCE } else { SHORT };
    let failed = connecting(&mut client, silence()).wait(patience).unwrap_err();
    match &failed.cause {
        Cause::Call(error) => assert_eq!(error.errno(), libc::ETIMEDOUT),
        Cause::TimedOut(_) => assert!(!context().is_iwarp()),
        _ => panic!("{failed:?}"),
    }
    match failed.value {
        AnyQueuePair::Init(pair) if !lacks(Promise::SparedPairs) => client.pair = Some(pair),
        AnyQueuePair::Errored(_) if lacks(Promise::SparedPairs) => return,
        other => panic!("{other:?}"),
    }
    let mut listener = cm::listen(&context(), (address(&context()), 0)).unwrap();
    let asking = connecting(&mut client, listener.local_address().unwrap());
    let mut server = side();
    let request = listener.next(PATIENCE).unwrap();
    let accepting = request.accept(server.take(), &Parameters::default(), &AcceptData::none()).unwrap();
    let (mut of_client, mut of_server) = (asking.wait(PATIENCE).unwrap(), accepting.wait(PATIENCE).unwrap());
    of_server.pair.post_receive(server.domain.buffer(64).unwrap()).unwrap();
    of_client.pair.post_send(message(&client.domain, b"at last")).unwrap();
    assert_eq!(&server.received()[..], b"at last");
}

/// CM017
#[test]
fn silence_is_given_up_after_78_seconds() {
    // On iWARP it is TCP, not rdma_cm, that decides when to give up, so this test does not apply.
    if lacks_need(Need::SilentHost) || lacks_need(Need::ThreeSteps) {
        return;
    }
    let mut client = side();
    let asking = connecting(&mut client, silence());
    let start = Instant::now();
    let failed = asking.wait(2 * PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::Unreachable { status } if status == -libc::ETIMEDOUT), "{failed:?}");
    assert!(matches!(failed.value, AnyQueuePair::Init(_)));
    assert!(start.elapsed().as_secs() >= 60, "{:?}", start.elapsed());
}

/// CM032
#[test]
fn clients_beyond_the_backlog_ask_again() {
    if lacks_need(Need::Backlog) {
        return;
    }
    let context = context();
    let channel = Channel::open(&context).unwrap();
    let mut pause = SHORT;
    loop {
        let bound = Idle::new(&channel).unwrap().bind(SocketAddr::new(address(&context), 0)).unwrap();
        let at = bound.local_address().unwrap();
        let mut late = bound.listen(2).unwrap();
        let mut sides = [(); 6].map(|()| side());
        let clients = sides.each_mut().map(|side| connecting(side, at));
        thread::sleep(pause);
        let mut taken = Vec::new();
        while let Some(request) = late.poll().unwrap() {
            taken.push(request);
        }
        if taken.len() == 2 {
            while taken.len() < clients.len() {
                taken.push(late.next(PATIENCE).unwrap());
            }
            return;
        }
        // Either the first two requests came late, or a client sent its request again while this thread polled. Clients
        // send it again every 4 s, so no pause is a multiple of 4 s.
        pause *= 3;
        assert!(on_hardware() && pause < PATIENCE, "{} were taken", taken.len());
    }
}

/// CM033
#[test]
fn a_message_may_come_before_the_word_that_the_connection_is_made() {
    let context = context();
    let mut listener = cm::listen(&context, (address(&context), 0)).unwrap();
    let at = listener.local_address().unwrap();
    let [mut client, mut server] = [side(), side()];
    let asking = connecting(&mut client, at);
    let mut pair = server.take();
    pair.post_receive(server.domain.buffer(64).unwrap()).unwrap();
    let request = listener.next(PATIENCE).unwrap();
    let mut accepting = request.accept(pair, &Parameters::default(), &AcceptData::none()).unwrap();
    let mut of_client = asking.wait(PATIENCE).unwrap();
    of_client.pair.post_send(message(&client.domain, b"early")).unwrap();
    client.poller.wait(PATIENCE).unwrap().check().unwrap();
    // The server receives the message before it has polled for any event.
    assert_eq!(&server.received()[..], b"early");
    accepting.message_arrived();
    let mut of_server = accepting.wait(PATIENCE).unwrap();
    of_client.pair.post_receive(client.domain.buffer(64).unwrap()).unwrap();
    of_server.pair.post_send(message(&server.domain, b"answer")).unwrap();
    assert_eq!(&client.received()[..], b"answer");
}
