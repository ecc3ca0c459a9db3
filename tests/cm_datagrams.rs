//! Datagrams by address, through rdma_cm: lookups and multicast groups, the same tests on every device.
#![cfg(feature = "cm")]

use interlock::attributes::DatagramInitAttributes;
use interlock::cm::{self, AnswerData, Cause, Channel, Datagrams, Idle, Listener, LookupData, LookupReason};
use interlock::number::Qkey;
use interlock::{Checked, Context, Limits, Poller, ProtectionDomain, QueuePair, ReadyToSend, UnreliableDatagram, Work};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;
use support::{PATIENCE, address, context, message, next};

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
