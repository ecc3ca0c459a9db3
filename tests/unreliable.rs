//! Unreliable connections and datagrams, on the soft device or on the one that `INTERLOCK_DEVICE` names.

use interlock::attributes::PeerPath;
use interlock::datagram::{Datagram, Recipient};
use interlock::error::RequestFlaw;
use interlock::number::Qkey;
use interlock::soft::{Fabric, Fault};
use interlock::{
    AnyQueuePair, Brand, Context, Inline, Limits, Poller, Port, PostError, ProtectionDomain, QueuePair, ReadyToSend,
    RemoteWrite, Status, UnreliableConnection, UnreliableDatagram, Work, WorkRequest,
};
use support::{Need, PATIENCE, Queues, eventually, lacks_need, next, nothing_comes};

const LIMITS: Limits =
    Limits { sends: 40, receives: 40, inline_bytes: 32, elements: 1, posting: interlock::queue::Posting::List };

/// Two pairs of one transport on one completion queue.
struct Two<B, T> {
    domain: ProtectionDomain<B>,
    port: Port,
    poller: Poller<B>,
    left: QueuePair<B, ReadyToSend, T>,
    right: QueuePair<B, ReadyToSend, T>,
}

fn connected<B: Brand>(domain: ProtectionDomain<B>) -> Two<B, UnreliableConnection> {
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.queue(4 * LIMITS.completions()).unwrap();
    let left = domain.unreliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
    let right = domain.unreliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
    Two { domain, port, poller, left, right }
}

fn datagrams<B: Brand>(domain: ProtectionDomain<B>) -> Two<B, UnreliableDatagram> {
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.queue(4 * LIMITS.completions()).unwrap();
    let pair = || domain.datagram(&queue, &LIMITS).unwrap().into_init(&port).unwrap().open().unwrap();
    let (left, right) = (pair(), pair());
    Two { domain, port, poller, left, right }
}

impl<B: Brand> Two<B, UnreliableDatagram> {
    fn to_right(&self, qkey: Qkey) -> Recipient<B> {
        self.domain.recipient(&self.port, &self.right.endpoint(), qkey).unwrap()
    }
}

/// Returns the datagrams among the next `count` completions, which must all succeed.
fn arrived<B>(poller: &mut Poller<B>, count: usize) -> Vec<Datagram<B>> {
    let works = (0..count).map(|_| next(poller).into_work());
    works
        .filter_map(|work| match work {
            Work::Datagram(datagram) => Some(datagram),
            Work::Sent(_) => None,
            other => panic!("{other:?}"),
        })
        .collect()
}

/// C165. The lost message does not stop the next one.
#[test]
fn a_message_without_a_receive_is_lost_and_nobody_is_told() {
    interlock::domain! { struct Test; }
    let mut two = connected(support::context().named_domain(Test).unwrap());
    let message = |bytes: &[u8]| {
        let mut buffer = two.domain.buffer(64).unwrap();
        buffer.write(bytes).unwrap();
        buffer
    };
    let (lost, after, kept) = (message(b"lost"), message(&[1; 8]), message(b"kept"));
    let region = two.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    two.left.post_send(lost).unwrap();
    assert!(matches!(next(&mut two.poller).into_work(), Work::Sent(_)));
    // When this write has arrived, the message before it has been lost.
    two.left.post_write(after, &region.remote()).unwrap();
    assert!(matches!(next(&mut two.poller).into_work(), Work::Written(_)));
    assert!(eventually(|| region.load(0).unwrap() != 0));
    nothing_comes(&mut two.poller);
    two.right.post_receive(two.domain.buffer(64).unwrap()).unwrap();
    two.left.post(WorkRequest::send(kept).with_immediate(9)).unwrap();
    let mut messages = 0;
    for _ in 0..2 {
        if let Work::Received(received) = next(&mut two.poller).into_work() {
            assert_eq!((&received.buffer[..], received.immediate), (&b"kept"[..], Some(9)));
            messages += 1;
        }
    }
    assert_eq!(messages, 1);
}

/// C166, C167.
#[test]
fn a_write_arrives_or_is_dropped_but_is_complete_at_once() {
    interlock::domain! { struct Test; }
    let mut two = connected(support::context().named_domain(Test).unwrap());
    let exposed = two.domain.register::<RemoteWrite, _>(vec![0_u64; 512]).unwrap();
    let target = exposed.remote();
    let mut source = two.domain.buffer(4096).unwrap();
    source.fill(7);
    two.left.post_write(source, &target).unwrap();
    let source = next(&mut two.poller).into_buffer().unwrap();
    two.right.post_receive(two.domain.buffer(8).unwrap()).unwrap();
    two.left.post_write_with_immediate(source, &target, 0xfeed).unwrap();
    for _ in 0..2 {
        match next(&mut two.poller).into_work() {
            Work::WrittenWithImmediate(written) => {
                assert_eq!((written.written_bytes, written.immediate), (4096, 0xfeed));
            }
            Work::Written(_) => (),
            other => panic!("{other:?}"),
        }
    }
    let mut seen = vec![0; 4096];
    exposed.read_into(0, &mut seen).unwrap();
    assert!(seen.iter().all(|&byte| byte == 7));

    // The key no longer names a region, so the peer drops the write. On the writer's side the write still completes.
    drop(exposed);
    two.left.post_write(two.domain.buffer(8).unwrap(), &target).unwrap();
    assert!(matches!(next(&mut two.poller).into_work(), Work::Written(_)));
    nothing_comes(&mut two.poller);
    assert_eq!(two.right.first_failure(), None);
}

/// C157.
#[test]
fn a_datagram_says_who_sent_it() {
    interlock::domain! { struct Test; }
    let mut two = datagrams(support::context().named_domain(Test).unwrap());
    let right = two.to_right(Qkey::USUAL);
    two.right.post_receive(two.domain.buffer(40 + 64).unwrap()).unwrap();
    two.right.post_receive(two.domain.buffer(40 + 64).unwrap()).unwrap();
    let mut message = two.domain.buffer(64).unwrap();
    message.iter_mut().zip(0..).for_each(|(byte, number)| *byte = number);
    two.left.post_send_to(message, &right).unwrap();
    two.left.post(WorkRequest::send_to(Inline(b"short"), &right).with_immediate(5).solicited()).unwrap();
    let came = arrived(&mut two.poller, 4);
    assert_eq!(came.len(), 2);
    assert!(came[0].message().iter().copied().eq(0..64), "{:?}", came[0].message());
    assert_eq!((came[0].sender, came[0].immediate), (two.left.number(), None));
    assert_eq!((came[1].message(), came[1].immediate), (&b"short"[..], Some(5)));
    assert_eq!(came[0].sender_gid(), Some(two.port.gid().unwrap().gid), "{:?}", came[0].header());

    // The received datagram holds all that the program needs for an answer.
    let back = PeerPath::to(came[0].sender_gid().unwrap());
    let back = two.domain.address_handle(&two.port, &back).unwrap();
    let back = Recipient::new(back, came[0].sender, Qkey::USUAL);
    two.left.post_receive(two.domain.buffer(40).unwrap()).unwrap();
    two.right.post_send_to(Inline(b""), &back).unwrap();
    let came = arrived(&mut two.poller, 2);
    assert_eq!((came[0].sender, came[0].message()), (two.right.number(), &b""[..]));
}

/// C158.
#[test]
fn a_datagram_with_another_key_is_dropped() {
    interlock::domain! { struct Test; }
    let mut two = datagrams(support::context().named_domain(Test).unwrap());
    let stranger = two.to_right(Qkey(0x2222_2222));
    two.right.post_receive(two.domain.buffer(64).unwrap()).unwrap();
    two.left.post_send_to(two.domain.buffer(8).unwrap(), &stranger).unwrap();
    assert!(matches!(next(&mut two.poller).into_work(), Work::Sent(_)));
    nothing_comes(&mut two.poller);
}

#[test]
fn a_datagram_has_one_mtu_and_a_receive_room_for_the_header() {
    interlock::domain! { struct Test; }
    let mut two = datagrams(support::context().named_domain(Test).unwrap());
    let right = two.to_right(Qkey::USUAL);
    let mtu = two.port.active_mtu().bytes() as usize;
    match two.left.post_send_to(two.domain.buffer(mtu + 1).unwrap(), &right) {
        Err(PostError::Flawed { request, flaw: RequestFlaw::TooLong { within, .. } }) => {
            assert_eq!((request.len(), within), (mtu + 1, mtu as u64));
        }
        other => panic!("{other:?}"),
    }
    match two.right.post_receive(two.domain.buffer(39).unwrap()) {
        Err(PostError::Flawed { request, flaw: RequestFlaw::NoRoomForHeader { len_bytes: 39 } }) => {
            assert_eq!(request.capacity(), 39);
        }
        other => panic!("{other:?}"),
    }
    two.right.post_receive(two.domain.buffer(40 + mtu).unwrap()).unwrap();
    two.left.post_send_to(two.domain.buffer(mtu).unwrap(), &right).unwrap();
    let came = arrived(&mut two.poller, 2);
    assert_eq!(came[0].message().len(), mtu);
}

/// C164, as far as the types allow: the program drops the handle while the request is in flight.
#[test]
fn an_address_handle_lives_as_long_as_requests_that_go_by_it() {
    interlock::domain! { struct Test; }
    let mut two = datagrams(support::context().named_domain(Test).unwrap());
    for round in 0..3 * LIMITS.sends {
        let right = two.to_right(Qkey::USUAL);
        two.right.post_receive(two.domain.buffer(64).unwrap()).unwrap();
        let bytes = round.to_ne_bytes();
        let request = WorkRequest::send_to(Inline(&bytes), &right);
        drop(right);
        let id = two.left.batch(|batch| batch.post(request)).unwrap().unwrap();
        let came = arrived(&mut two.poller, 2);
        assert_eq!(came[0].message(), bytes, "{id:?}");
    }
}

#[test]
fn a_full_queue_gives_the_datagram_back_with_its_recipient() {
    interlock::domain! { struct Test; }
    let mut two = datagrams(support::context().named_domain(Test).unwrap());
    let right = two.to_right(Qkey::USUAL);
    for _ in 0..LIMITS.sends {
        two.left.post(WorkRequest::send_to(Inline(b"x"), &right).unsignalled()).unwrap();
    }
    let request = WorkRequest::send_to(two.domain.buffer(8).unwrap(), &right);
    let Err(PostError::QueueFull(request)) = two.left.post(request) else { panic!("there was room") };
    let addressed = request.into_memory();
    assert_eq!((addressed.recipient.queue_pair(), addressed.memory.len()), (two.right.number(), 8));
    for _ in 0..LIMITS.sends {
        assert!(matches!(next(&mut two.poller).into_work(), Work::Sent(_)));
    }
    two.left.post_send_to(addressed.memory, &right).unwrap();
    assert_eq!(next(&mut two.poller).into_buffer().unwrap().len(), 8);
}

/// C162. C141: a member may be destroyed, and thereby leaves the group.
#[test]
fn each_member_of_a_group_gets_a_datagram_to_it() {
    interlock::domain! { struct Test; }
    interlock::domain! { struct Elsewhere; struct Others; }
    let mut two = datagrams(support::context().named_domain(Elsewhere).unwrap());
    // This is the GID that stands for the IPv4 address 239.7.7.7.
    let group = interlock::Gid::from(std::net::IpAddr::from([239, 7, 7, 7]));
    // On a real device, the network interface of each member must join the group, too.
    let interface = <[u8; 4]>::try_from(&two.port.gid().unwrap().gid.0[12..]).unwrap();
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    if support::on_hardware() {
        socket.join_multicast_v4(&[239, 7, 7, 7].into(), &interface.into()).unwrap();
    }
    two.left.join_group(group, 0).unwrap();
    two.right.join_group(group, 0).unwrap();
    two.left.post_receive(two.domain.buffer(64).unwrap()).unwrap();
    two.right.post_receive(two.domain.buffer(64).unwrap()).unwrap();
    let domain = support::context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let handle = domain.address_handle(&port, &PeerPath::to(group)).unwrap();
    let (queue, mut poller) = domain.queue(LIMITS.completions()).unwrap();
    let mut sender = domain.datagram(&queue, &LIMITS).unwrap().into_init(&port).unwrap().open().unwrap();
    sender.post_send_to(Inline(b"all"), &Recipient::group(handle, Qkey::USUAL)).unwrap();
    assert!(matches!(next(&mut poller).into_work(), Work::Sent(_)));
    // `two.left` and `two.right` are members on the sender's own device.
    let came = arrived(&mut two.poller, 2);
    assert_eq!(came.len(), 2);
    assert!(came.iter().all(|datagram| datagram.message() == b"all" && datagram.sender == sender.number()));
    assert!(came.iter().all(|datagram| datagram.sender_gid() == port.gid().map(|row| row.gid)));
    // If there is another device, a third member joins on that device.
    if let Some(name) = support::another_device() {
        let mut others = datagrams(Context::open(&name).unwrap().named_domain(Others).unwrap());
        let interface = <[u8; 4]>::try_from(&others.port.gid().unwrap().gid.0[12..]).unwrap();
        if support::on_hardware() {
            socket.join_multicast_v4(&[239, 7, 7, 7].into(), &interface.into()).unwrap();
        }
        others.left.join_group(group, 0).unwrap();
        others.left.post_receive(others.domain.buffer(64).unwrap()).unwrap();
        for pair in [&mut two.left, &mut two.right] {
            pair.post_receive(two.domain.buffer(64).unwrap()).unwrap();
        }
        let handle = domain.address_handle(&port, &PeerPath::to(group)).unwrap();
        sender.post_send_to(Inline(b"more"), &Recipient::group(handle, Qkey::USUAL)).unwrap();
        assert!(matches!(next(&mut poller).into_work(), Work::Sent(_)));
        assert_eq!(arrived(&mut others.poller, 1)[0].message(), b"more");
        assert_eq!(arrived(&mut two.poller, 2).len(), 2);
    }
    two.left.leave_group(group, 0).unwrap();
    assert!(two.left.leave_group(group, 0).is_err(), "left twice");
    assert!(two.left.join_group(two.port.gid().unwrap().gid, 0).is_err(), "not a group");
    two.left.destroy().unwrap();
    two.right.destroy().expect("a member is destroyed");
}

/// C158: if the top bit of a key is set, the sender's own key is sent instead.
#[test]
fn c158_a_key_with_the_top_bit_set_is_that_of_the_sender() {
    interlock::domain! { struct Test; }
    let mut two = datagrams(support::context().named_domain(Test).unwrap());
    two.right.post_receive(two.domain.buffer(64).unwrap()).unwrap();
    two.left.post_send_to(Inline(b"own"), &two.to_right(Qkey(0x8000_0001))).unwrap();
    if support::deviates("C158") {
        assert!(matches!(next(&mut two.poller).into_work(), Work::Sent(_)));
        nothing_comes(&mut two.poller);
    } else {
        assert_eq!(arrived(&mut two.poller, 2)[0].message(), b"own");
    }
    // If the datagram above was dropped, its receive is still there, and takes a datagram with the pair's own key.
    two.left.post_send_to(Inline(b"usual"), &two.to_right(Qkey::USUAL)).unwrap();
    if support::deviates("C158") {
        assert_eq!(arrived(&mut two.poller, 2)[0].message(), b"usual");
    }
}

/// Runs `f` on a soft device that takes injected faults.
fn soft<R>(f: impl for<'pd> FnOnce(&Fabric, ProtectionDomain<interlock::Scoped<'pd>>) -> R) -> R {
    let fabric = Fabric::new();
    Context::open_on(&fabric, "unreliable").unwrap().with_domain(|domain| f(&fabric, domain)).unwrap()
}

#[test]
fn a_failing_send_stops_the_sends_only_until_the_pair_resumes() {
    soft(|fabric, domain| {
        let mut two = connected(domain);
        fabric.inject(Fault::RequestsFail { count: 1 });
        two.left.post_send(Inline(b"fails")).unwrap();
        let failure = two.poller.wait(PATIENCE).unwrap().check().unwrap_err();
        assert_eq!((failure.status, failure.first_failure), (Status::LocalProtection, None));
        drop(failure);
        assert!(matches!(two.left.post_send(Inline(b"x")), Err(PostError::Broken { .. })));

        // Receives still work.
        two.left.post_receive(two.domain.buffer(8).unwrap()).unwrap();
        two.right.post_send(Inline(b"still")).unwrap();
        let received = (0..2).find_map(|_| next(&mut two.poller).into_received().ok()).expect("a message");
        assert_eq!(&received[..], b"still");

        let pair = two.left.into_sqe().expect("the device says so").resume().expect("all sends are out");
        two.left = pair;
        assert_eq!(two.left.first_failure(), None);
        two.right.post_receive(two.domain.buffer(8).unwrap()).unwrap();
        two.left.post_send(Inline(b"again")).unwrap();
        let received = (0..2).find_map(|_| next(&mut two.poller).into_received().ok()).expect("a message");
        assert_eq!(&received[..], b"again");
    });
}

/// The first failure of the pair is not reported as the cause of a later, unrelated failure, and a later failure does
/// not replace it.
#[test]
fn a_receive_that_fails_after_a_send_has_its_own_cause() {
    soft(|fabric, domain| {
        let mut two = datagrams(domain);
        fabric.inject(Fault::RequestsFail { count: 1 });
        two.left.post_send_to(Inline(b"fails"), &two.to_right(Qkey::USUAL)).unwrap();
        assert_eq!(two.poller.wait(PATIENCE).unwrap().check().unwrap_err().status, Status::LocalProtection);

        two.left.post_receive(two.domain.buffer(41).unwrap()).unwrap();
        let to_left = two.domain.recipient(&two.port, &two.left.endpoint(), Qkey::USUAL).unwrap();
        two.right.post_send_to(Inline(b"more than one byte"), &to_left).unwrap();
        let failure = (0..2).find_map(|_| two.poller.wait(PATIENCE).unwrap().check().err()).expect("too long");
        assert_eq!((failure.status, failure.first_failure), (Status::LocalLength, None));
        assert_eq!(two.left.first_failure(), Some(Status::LocalProtection), "the first of the pair");
        // The failed receive has moved the pair to Error, so this transition fails. The pair is still broken, and still
        // knows its first failure.
        let error = two.left.into_sqe().unwrap_err();
        assert!(error.queue_pair.is_broken());
        assert_eq!(error.queue_pair.first_failure(), Some(Status::LocalProtection));
    });
}

#[test]
fn a_pair_that_is_well_does_not_go_to_send_queue_error() {
    soft(|_, domain| {
        let two = connected(domain);
        let error = two.left.into_sqe().unwrap_err();
        assert!(error.to_string().contains("ReadyToSend"), "{error}");
        assert!(AnyQueuePair::from(error.queue_pair).ready().is_some());
    });
}

#[test]
fn sends_are_polled_out_before_the_pair_resumes() {
    soft(|fabric, domain| {
        let mut two = datagrams(domain);
        let right = two.to_right(Qkey::USUAL);
        fabric.inject(Fault::RequestsFail { count: 1 });
        two.left.post_send_to(Inline(b"fails"), &right).unwrap();
        let failed = two.poller.wait(PATIENCE).unwrap();
        // The poller has returned the completion of the failed send, so the pair can be resumed.
        drop(failed.check().unwrap_err());
        let pair = two.left.into_sqe().unwrap();
        let mut pair = pair.resume().unwrap();
        two.right.post_receive(two.domain.buffer(64).unwrap()).unwrap();
        pair.post_send_to(Inline(b"back"), &right).unwrap();
        assert_eq!(arrived(&mut two.poller, 2)[0].message(), b"back");
    });
}

#[test]
fn drained_and_reset_datagram_pairs_come_up_again() {
    if lacks_need(Need::Reset) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut two = datagrams(support::context().named_domain(Test).unwrap());
    for _ in 0..4 {
        two.left.post_receive(two.domain.buffer(64).unwrap()).unwrap();
    }
    let mut left = two.left.into_error().unwrap();
    let mut flushed = 0;
    left.drain(&mut two.poller, PATIENCE, |completion| {
        assert_eq!(completion.check().unwrap_err().status, Status::Flushed);
        flushed += 1;
    })
    .unwrap();
    assert_eq!((flushed, left.receives_in_flight()), (4, 0));
    let mut left = left.into_reset().unwrap().into_init(&two.port).unwrap().open().unwrap();
    left.post_receive(two.domain.buffer(64).unwrap()).unwrap();
    let to_left = two.domain.recipient(&two.port, &left.endpoint(), Qkey::USUAL).unwrap();
    two.right.post_send_to(Inline(b"again"), &to_left).unwrap();
    assert_eq!(arrived(&mut two.poller, 2)[0].message(), b"again");
}

#[test]
fn a_datagram_is_answered_by_what_it_says_of_its_sender() {
    interlock::domain! { struct Test; }
    let mut two = datagrams(support::context().named_domain(Test).unwrap());
    for pair in [&mut two.left, &mut two.right] {
        pair.post_receive(two.domain.buffer(64).unwrap()).unwrap();
    }
    let to_right = two.to_right(Qkey::USUAL);
    two.left.post_send_to(Inline(b"who?"), &to_right).unwrap();
    let question = arrived(&mut two.poller, 2).remove(0);
    let sender = two.domain.sender(&two.port, &question, Qkey::USUAL).unwrap();
    assert_eq!((sender.queue_pair(), question.traffic_class()), (two.left.number(), 0));
    two.right.post_send_to(Inline(b"me"), &sender).unwrap();
    let answer = arrived(&mut two.poller, 2).remove(0);
    assert_eq!((answer.message(), answer.sender), (&b"me"[..], two.right.number()));
    assert_eq!(answer.sender_gid(), two.port.gid().map(|row| row.gid));
}

#[test]
fn sends_and_receives_complete_on_queues_of_their_own() {
    if lacks_need(Need::TwoQueues) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = support::context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let (sends, mut sent) = domain.queue(4 * LIMITS.completions()).unwrap();
    let (receives, mut received) = domain.queue(4 * LIMITS.completions()).unwrap();
    let pair = || domain.unreliable_on(&sends, &receives, &LIMITS).unwrap().into_init(&port).unwrap();
    let (left, right) = (pair(), pair());
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (mut left, mut right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
    right.post_receive(domain.buffer(64).unwrap()).unwrap();
    left.post_send(Inline(b"uc")).unwrap();
    assert!(matches!(next(&mut sent).into_work(), Work::Sent(_)));
    assert!(matches!(next(&mut received).into_work(), Work::Received(_)));
    let mut pair = domain.datagram_on(&sends, &receives, &LIMITS).unwrap().into_init(&port).unwrap().open().unwrap();
    let myself = domain.recipient(&port, &pair.endpoint(), Qkey::USUAL).unwrap();
    pair.post_receive(domain.buffer(64).unwrap()).unwrap();
    pair.post_send_to(Inline(b"ud"), &myself).unwrap();
    assert!(matches!(next(&mut sent).into_work(), Work::Sent(_)));
    assert!(matches!(next(&mut received).into_work(), Work::Datagram(_)));
}

support::also_extended![
    a_message_without_a_receive_is_lost_and_nobody_is_told,
    a_write_arrives_or_is_dropped_but_is_complete_at_once,
    a_datagram_says_who_sent_it,
    a_datagram_with_another_key_is_dropped,
    a_datagram_has_one_mtu_and_a_receive_room_for_the_header,
    an_address_handle_lives_as_long_as_requests_that_go_by_it,
    a_full_queue_gives_the_datagram_back_with_its_recipient,
    each_member_of_a_group_gets_a_datagram_to_it,
    c158_a_key_with_the_top_bit_set_is_that_of_the_sender,
    a_failing_send_stops_the_sends_only_until_the_pair_resumes,
    a_receive_that_fails_after_a_send_has_its_own_cause,
    a_pair_that_is_well_does_not_go_to_send_queue_error,
    sends_are_polled_out_before_the_pair_resumes,
    drained_and_reset_datagram_pairs_come_up_again,
    a_datagram_is_answered_by_what_it_says_of_its_sender,
    sends_and_receives_complete_on_queues_of_their_own,
];
