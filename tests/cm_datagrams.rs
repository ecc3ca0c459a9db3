//! Datagrams by address, through rdma_cm: lookups and multicast groups, the same tests on every device.
#![cfg(feature = "cm")]

use interlock::attributes::DatagramInitAttributes;
use interlock::cm::{
    self, AnswerData, Cause, Channel, ConnectData, Datagrams, Idle, Listener, LookingUp, LookupData, LookupReason,
    RejectReason,
};
use interlock::number::Qkey;
use interlock::{Checked, Context, Limits, Poller, ProtectionDomain, QueuePair, ReadyToSend, UnreliableDatagram, Work};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;
use support::{PATIENCE, address, context, message, next, on_hardware};

const SHORT: Duration = Duration::from_millis(300);

/// A pair for datagrams.
struct Side {
    domain: ProtectionDomain<Checked>,
    poller: Poller<Checked>,
    pair: QueuePair<Checked, ReadyToSend, UnreliableDatagram>,
}

impl Side {
    fn with_key(context: &Context, qkey: Qkey) -> Self {
        let domain = context.checked_domain().unwrap();
        let limits = Limits::default();
        let (queue, poller) = domain.completion_queue(limits.completions()).unwrap();
        let port = domain.context().active_port().unwrap();
        let attributes = DatagramInitAttributes { qkey, ..DatagramInitAttributes::from(&port) };
        let pair = domain.datagram(&queue, &limits).unwrap().into_init(attributes).unwrap().open().unwrap();
        Self { domain, poller, pair }
    }

    fn new() -> Self {
        Self::with_key(&context(), Qkey::CONNECTION_MANAGER)
    }

    fn receive(&mut self) {
        self.pair.post_receive(self.domain.buffer(40 + 64).unwrap()).unwrap();
    }

    fn assert_received(&mut self, bytes: &[u8]) {
        let Work::Datagram(datagram) = next(&mut self.poller).into_work() else { panic!("no datagram") };
        assert_eq!(datagram.message(), bytes);
    }
}

fn listener() -> (Listener<Datagrams>, SocketAddr) {
    let context = context();
    let listener = cm::serve(&context, (address(&context), 0)).unwrap();
    let at = listener.local_address().unwrap();
    (listener, at)
}

/// CM041, C185
#[test]
fn a_lookup_finds_the_pair_of_a_service() {
    let (mut listener, at) = listener();
    let mut server = Side::new();
    let number = server.pair.number();
    let server = thread::spawn(move || {
        for _ in 0..2 {
            server.receive();
            let request = listener.next(PATIENCE).unwrap();
            assert_eq!(request.data().padded(), [1; 180]);
            request.answer(&server.pair, &AnswerData::raw(&[2; 136]).unwrap()).unwrap();
            server.assert_received(b"hello");
        }
    });
    let mut client = Side::new();
    for _ in 0..2 {
        let service = cm::look_up(&context(), at, &LookupData::raw(&[1; 180]).unwrap(), PATIENCE).unwrap();
        assert_eq!((service.queue_pair, service.qkey), (number, Qkey::CONNECTION_MANAGER));
        assert_eq!(service.data.padded(), [2; 136]);
        let recipient = service.recipient(&client.domain).unwrap();
        client.pair.post_send_to(message(&client.domain, b"hello"), &recipient).unwrap();
        assert!(matches!(next(&mut client.poller).into_work(), Work::Sent(_)));
    }
    server.join().unwrap();
}

/// CM041
#[test]
fn a_lookup_where_nobody_serves_or_the_server_refuses_says_so() {
    let (mut listener, at) = listener();
    let server = thread::spawn(move || {
        listener.next(PATIENCE).unwrap().refuse(&AnswerData::framed(b"full").unwrap()).unwrap();
        drop(listener.next(PATIENCE).unwrap());
        drop(listener);
    });
    let look_up = || cm::look_up(&context(), at, &LookupData::none(), PATIENCE).unwrap_err();
    let refused = look_up();
    let Cause::NotServed { reason: LookupReason::REFUSED, data } = &refused else { panic!("{refused:?}") };
    assert_eq!(data.framed(), Some(&b"full"[..]));
    let dropped = look_up();
    assert!(matches!(dropped, Cause::NotServed { reason: LookupReason::REFUSED, .. }), "{dropped:?}");
    server.join().unwrap();
    let nobody = look_up();
    assert!(matches!(nobody, Cause::NotServed { reason: LookupReason::NO_SUCH_SERVICE, .. }), "{nobody:?}");
}

#[test]
fn a_pair_with_another_key_is_no_answer() {
    let (mut listener, at) = listener();
    let server = thread::spawn(move || {
        let side = Side::with_key(&context(), Qkey::USUAL);
        let failed = listener.next(PATIENCE).unwrap().answer(&side.pair, &AnswerData::none()).unwrap_err();
        assert!(matches!(failed, Cause::OtherKey { .. }), "{failed:?}");
    });
    let failed = cm::look_up(&context(), at, &LookupData::none(), PATIENCE).unwrap_err();
    assert!(matches!(failed, Cause::NotServed { reason: LookupReason::REFUSED, .. }), "{failed:?}");
    server.join().unwrap();
}

#[test]
fn a_lookup_may_be_dropped_at_any_step() {
    let (mut listener, at) = listener();
    let channel = Channel::open(&context()).unwrap();
    drop(Idle::for_datagrams(&channel).unwrap());
    let resolved = || Idle::for_datagrams(&channel).unwrap().resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    drop(resolved());
    drop(resolved().look_up(&LookupData::none()).unwrap());
    drop(listener.next(SHORT));
    let asking = resolved().look_up(&LookupData::none()).unwrap();
    let failed = asking.wait(SHORT).unwrap_err();
    assert!(matches!(failed, Cause::TimedOut(_)), "{failed:?}");
}

fn group() -> IpAddr {
    IpAddr::from([239, 7, 7, 9])
}

#[test]
fn members_of_a_group_get_its_datagrams() {
    let context = context();
    let channel = Channel::open(&context).unwrap();
    let bound = || {
        let idle = Idle::for_datagrams(&channel).unwrap();
        idle.bind(SocketAddr::new(address(&context), 0)).unwrap()
    };
    let failed = bound().join(address(&context)).unwrap_err();
    assert!(matches!(&failed.cause, Cause::Call(error) if error.errno() == libc::EINVAL), "{failed:?}");
    let membership = failed.value.join(group()).unwrap().wait(PATIENCE).unwrap();
    assert_eq!((membership.gid(), membership.qkey()), (interlock::Gid::from(group()), Qkey::CONNECTION_MANAGER));
    let mut stranger = Side::with_key(&context, Qkey::USUAL);
    assert!(matches!(membership.attach(&mut stranger.pair), Err(Cause::OtherKey { .. })));
    let [mut member, mut sender] = [Side::new(), Side::new()];
    membership.attach(&mut member.pair).unwrap();
    member.receive();
    let all = membership.recipient(&sender.domain).unwrap();
    sender.pair.post_send_to(message(&sender.domain, b"all"), &all).unwrap();
    assert!(matches!(next(&mut sender.poller).into_work(), Work::Sent(_)));
    member.assert_received(b"all");
    membership.detach(&mut member.pair).unwrap();
    assert!(membership.detach(&mut member.pair).is_err(), "detached twice");
    let bound_again = membership.leave().unwrap();
    drop(bound_again.join(group()).unwrap().wait(PATIENCE).unwrap());
    drop(bound().join(group()).unwrap());
}

fn looking_up(at: SocketAddr) -> LookingUp {
    let idle = Idle::for_datagrams(&Channel::open(&context()).unwrap()).unwrap();
    let resolved = idle.resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    resolved.look_up(&LookupData::none()).unwrap()
}

#[test]
fn a_lookup_in_no_time_is_late_and_the_next_one_is_answered() {
    let (mut listener, at) = listener();
    let failed = cm::look_up(&context(), at, &LookupData::none(), Duration::ZERO).unwrap_err();
    assert!(matches!(failed, Cause::TimedOut(Duration::ZERO) | Cause::Address(_)), "{failed:?}");
    for _ in 0..2 {
        let failed = looking_up(at).wait(Duration::ZERO).unwrap_err();
        assert!(matches!(failed, Cause::TimedOut(Duration::ZERO)), "{failed:?}");
    }
    let server = Side::new();
    let mut late = 0;
    // The requests of clients that gave up still arrive: rdma_cm does not report that these clients have ended.
    while let Ok(request) = listener.next(if late < 2 { PATIENCE } else { SHORT }) {
        late += 1;
        match late {
            1 => request.answer(&server.pair, &AnswerData::none()).unwrap(),
            _ => request.refuse(&AnswerData::none()).unwrap(),
        }
    }
    assert!((2..=3).contains(&late), "{late}");
    // Use a second listener: a request of the first client can still come to the first listener.
    let (mut listener, at) = self::listener();
    let asking = looking_up(at);
    let request = listener.next(Duration::MAX).unwrap();
    drop(listener);
    request.answer(&server.pair, &AnswerData::framed(&[]).unwrap()).unwrap();
    let service = asking.wait(Duration::MAX).unwrap();
    assert_eq!((service.queue_pair, service.data.framed()), (server.pair.number(), Some(&[][..])));
}

#[test]
fn a_port_for_connections_is_another_than_the_same_port_for_datagrams() {
    let (mut of_datagrams, at) = listener();
    let mut of_connections = cm::listen(&context(), at).unwrap();
    let asking = looking_up(at);
    let server = Side::new();
    let request = of_datagrams.next(PATIENCE).unwrap();
    assert_eq!(request.local_address(), Some(at));
    request.answer(&server.pair, &AnswerData::none()).unwrap();
    assert_eq!(asking.wait(PATIENCE).unwrap().queue_pair, server.pair.number());
    assert!(of_connections.poll().unwrap().is_none());
    let mut connecting = support::Side::new(context().checked_domain().unwrap());
    let failed = thread::scope(|scope| {
        scope.spawn(|| drop(of_connections.next(PATIENCE).unwrap()));
        cm::connect(at, connecting.take(), &ConnectData::none(), PATIENCE).unwrap_err()
    });
    assert!(matches!(failed.cause, Cause::Rejected { reason: RejectReason::CONSUMER, .. }), "{failed:?}");
    assert!(of_datagrams.poll().unwrap().is_none());
    drop(of_datagrams);
    let failed = looking_up(at).wait(PATIENCE).unwrap_err();
    assert!(matches!(failed, Cause::NotServed { reason: LookupReason::NO_SUCH_SERVICE, .. }), "{failed:?}");
    drop(of_connections);
    let (_of_datagrams, at) = listener();
    let mut connecting = support::Side::new(context().checked_domain().unwrap());
    let failed = cm::connect(at, connecting.take(), &ConnectData::none(), PATIENCE).unwrap_err();
    assert!(matches!(failed.cause, Cause::Rejected { reason: RejectReason::NO_SUCH_SERVICE, .. }), "{failed:?}");
}

#[test]
fn a_service_that_ends_refuses_the_lookups_that_wait() {
    let (listener, at) = listener();
    let asking = [(); 3].map(|()| looking_up(at));
    thread::sleep(SHORT);
    drop(listener);
    for asking in asking {
        let failed = asking.wait(PATIENCE).unwrap_err();
        let Cause::NotServed { reason, .. } = &failed else { panic!("{failed:?}") };
        // On a real device, the lookup perhaps came only after the service had ended.
        let is_late = on_hardware() && *reason == LookupReason::NO_SUCH_SERVICE;
        assert!(is_late || *reason == LookupReason::REFUSED, "{failed:?}");
    }
}

#[test]
fn a_recipient_outlives_all_that_found_it() {
    let (mut listener, at) = listener();
    let [mut client, mut server] = [Side::new(), Side::new()];
    server.receive();
    let asking = looking_up(at);
    listener.next(PATIENCE).unwrap().answer(&server.pair, &AnswerData::none()).unwrap();
    let service = asking.wait(PATIENCE).unwrap();
    drop(listener);
    let recipient = service.recipient(&client.domain).unwrap();
    drop(service);
    client.pair.post_send_to(message(&client.domain, b"hello"), &recipient).unwrap();
    assert!(matches!(next(&mut client.poller).into_work(), Work::Sent(_)));
    server.assert_received(b"hello");
    drop(server);
    // The pair of the recipient no longer exists. The datagram is lost, but its send completes with success.
    client.pair.post_send_to(message(&client.domain, b"hello"), &recipient).unwrap();
    assert!(matches!(next(&mut client.poller).into_work(), Work::Sent(_)));
}

#[test]
fn a_member_of_a_group_stays_when_another_leaves() {
    let context = context();
    let channel = Channel::open(&context).unwrap();
    let group = IpAddr::from([239, 7, 7, 10]);
    let bound = || Idle::for_datagrams(&channel).unwrap().bind((address(&context), 0).into()).unwrap();
    let [one, two] = [(); 2].map(|()| bound().join(group).unwrap().wait(Duration::MAX).unwrap());
    let [mut first, mut second, mut sender] = [(); 3].map(|()| Side::new());
    one.attach(&mut first.pair).unwrap();
    two.attach(&mut second.pair).unwrap();
    let left = one.leave().unwrap();
    second.receive();
    let all = two.recipient(&sender.domain).unwrap();
    sender.pair.post_send_to(message(&sender.domain, b"all"), &all).unwrap();
    assert!(matches!(next(&mut sender.poller).into_work(), Work::Sent(_)));
    second.assert_received(b"all");
    let again = left.join(group).unwrap().wait(PATIENCE).unwrap();
    again.detach(&mut first.pair).unwrap();
    assert!(again.detach(&mut sender.pair).is_err(), "it was never attached");
    // The membership `two` ends while the pair of `second` is still attached to the group. The pair is destroyed later.
    drop(two);
    drop(second);
    // An identifier that has left its group can listen.
    let mut listener = again.leave().unwrap().listen(0).unwrap();
    let asking = looking_up(listener.local_address().unwrap());
    drop(listener.next(PATIENCE).unwrap());
    assert!(matches!(asking.wait(PATIENCE), Err(Cause::NotServed { reason: LookupReason::REFUSED, .. })));
    let many: Vec<_> = (0..8).map(|last| bound().join([239, 7, 8, last].into()).unwrap()).collect();
    let many = many.into_iter().map(|joining| joining.wait(PATIENCE).unwrap());
    thread::scope(|scope| many.for_each(|membership| drop(scope.spawn(|| drop(membership)))));
}

/// The kernel refuses all calls of a thread with other credentials, so neither the leave nor the destroy of the
/// identifier is done. The leave has freed memory of librdmacm to which an event in the kernel may point, so the
/// channel gives no more events.
#[test]
fn a_channel_gives_no_events_after_a_leave_that_failed() {
    if !on_hardware() {
        return;
    }
    let context = context();
    let channel = Channel::open(&context).unwrap();
    let bound = Idle::for_datagrams(&channel).unwrap().bind((address(&context), 0).into()).unwrap();
    let member = bound.join(group()).unwrap().wait(PATIENCE).unwrap();
    let leaving = thread::spawn(move || {
        // SAFETY: the call has numbers as arguments, and changes only the group of this thread.
        let changed = unsafe { libc::syscall(libc::SYS_setresgid, -1, 1, -1) };
        assert_eq!(changed, 0, "the tests on soft-RoCE run as root");
        member.leave().unwrap_err()
    });
    let failed = leaving.join().unwrap();
    let Cause::Call(error) = &failed.cause else { panic!("{failed:?}") };
    assert_eq!((error.verb(), error.errno()), ("rdma_leave_multicast", libc::EACCES));
    drop(failed);
    let error = channel.poll().unwrap_err();
    assert_eq!((error.verb(), error.errno()), ("rdma_get_cm_event", libc::EIO));
}
