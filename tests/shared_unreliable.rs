//! Shared receive queues of unreliable connections and of datagrams. The tests run on the soft device, or on the device
//! that `INTERLOCK_DEVICE` names.

use interlock::datagram::{Datagram, Recipient};
use interlock::error::{RequestFlaw, TransitionFailure};
use interlock::number::Qkey;
use interlock::request::Operation;
use interlock::shared::{Datagrams, SharedLimits, SharedReceiveQueue};
use interlock::soft::{Fabric, Fault};
use interlock::transport::OnShared;
use interlock::{
    Brand, Buffer, CompletionQueue, Context, Inline, Limits, Poller, Port, PostError, ProtectionDomain, QueuePair,
    ReadyToSend, RemoteWrite, Status, UnreliableConnection, UnreliableDatagram, Work,
};
use std::collections::HashSet;
use std::time::Duration;
use support::{
    Need, PATIENCE, Promise, Queues, context, eventually, lacks, lacks_need, next, nothing_comes, on_hardware, see_off,
    unless_refused,
};

const LIMITS: Limits =
    Limits { sends: 8, receives: 8, inline_bytes: 64, elements: 1, posting: interlock::queue::Posting::List };
const SHARED: SharedLimits = SharedLimits { receives: 8, grows_to: 0 };
/// How long a test waits for a completion that must not come.
const A_WHILE: Duration = Duration::from_millis(200);

type Connection<B> = QueuePair<B, ReadyToSend, UnreliableConnection>;
type Server<B> = QueuePair<B, ReadyToSend, OnShared<UnreliableConnection>>;
type Mailbox<B> = QueuePair<B, ReadyToSend, OnShared<UnreliableDatagram>>;

/// Unreliable connections from clients to servers that receive from one shared queue. All sends complete on `sent`, and
/// all receives on `received`. Where a pair has only one queue, all requests of a server complete on `received`.
struct Star<B> {
    domain: ProtectionDomain<B>,
    sent: Poller<B>,
    /// The queue on which receives complete.
    queue: CompletionQueue<B>,
    received: Poller<B>,
    shared: SharedReceiveQueue<B>,
    clients: Vec<Connection<B>>,
    servers: Vec<Server<B>>,
}

impl<B: Brand> Star<B> {
    fn new(domain: ProtectionDomain<B>, pairs: usize) -> Self {
        let port = domain.context().active_port().unwrap();
        let (sends, sent) = domain.queue(24 * pairs as u32).unwrap();
        let has_two_queues = domain.context().promises().pairs_may_have_two_queues();
        let of_sends = if has_two_queues { 0 } else { LIMITS.sends * pairs as u32 };
        let (queue, received) = domain.queue(SHARED.receives + of_sends).unwrap();
        let shared = domain.shared_receive_queue(&SHARED).unwrap();
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            let client = domain.unreliable(&sends, &LIMITS).unwrap().into_init(&port).unwrap();
            let sends = if has_two_queues { &sends } else { &queue };
            let server = shared.unreliable_on(sends, &queue, &LIMITS).unwrap().into_init(&port).unwrap();
            let (to_client, to_server) = (client.endpoint(), server.endpoint());
            clients.push(client.connect(&to_server).unwrap());
            servers.push(server.connect(&to_client).unwrap());
        }
        Self { domain, sent, queue, received, shared, clients, servers }
    }

    fn stock(&mut self, count: usize) {
        for buffer in self.domain.buffers(count, 64).unwrap() {
            self.shared.post_receive(buffer).unwrap();
        }
    }

    /// Sends a message, and waits until the send has completed.
    fn send(&mut self, client: usize, text: &[u8]) {
        self.clients[client].post_send(Inline(text)).unwrap();
        next(&mut self.sent);
    }
}

/// C150, on unreliable connections.
#[test]
fn each_message_comes_once_with_the_pair_that_took_it() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let mut star = Star::new(context().checked_domain().unwrap(), 2);
    star.stock(8);
    let mut expected = HashSet::new();
    for round in 0..4 {
        for client in 0..2 {
            let text = format!("{round} of {client}");
            star.send(client, text.as_bytes());
            expected.insert((star.servers[client].number(), text.into_bytes()));
        }
    }
    for _ in 0..8 {
        let success = next(&mut star.received);
        let pair = success.queue_pair();
        let buffer = success.into_received().expect("a message");
        assert!(expected.remove(&(pair, buffer.to_vec())), "{pair:?}: {buffer:?}");
    }
    assert_eq!((star.shared.in_flight(), star.received.unknown_completions()), (0, 0));
    // A server can answer.
    let client = &mut star.clients[1];
    client.post_receive(star.domain.buffer(64).unwrap()).unwrap();
    star.servers[1].post_send(Inline(b"answer")).unwrap();
    let mut answer = None;
    while answer.is_none() {
        answer = next(&mut star.sent).into_received().ok();
    }
    assert_eq!(answer.as_deref(), Some(&b"answer"[..]));
}

#[test]
fn a_message_without_a_shared_receive_is_lost_and_the_next_arrives() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let mut star = Star::new(context().checked_domain().unwrap(), 2);
    star.send(0, b"lost");
    // When this write has arrived, the message before it has been lost.
    let exposed = star.domain.register::<RemoteWrite, _>(vec![0_u64; 8]).unwrap();
    star.clients[0].post_write(Inline(b"after it"), &exposed.remote()).unwrap();
    next(&mut star.sent);
    assert!(eventually(|| exposed.load(0).unwrap() != 0));
    nothing_comes(&mut star.received);
    star.stock(2);
    star.send(0, b"kept");
    assert_eq!(&next(&mut star.received).into_received().unwrap()[..], b"kept");
    // A write with immediate takes a receive.
    star.clients[1].post_write_with_immediate(Inline(b"somewhere"), &exposed.remote(), 0xfeed).unwrap();
    let success = next(&mut star.received);
    assert_eq!(success.queue_pair(), star.servers[1].number());
    match success.into_work() {
        Work::WrittenWithImmediate(written) => assert_eq!((written.written_bytes, written.immediate), (9, 0xfeed)),
        other => panic!("{other:?}"),
    }
    assert_eq!(exposed.to_vec(0..9).unwrap(), b"somewhere");
}

/// Soft-RoCE reports another status for a message that is too long.
#[test]
fn a_message_too_long_fails_the_pair_that_took_it_alone() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let mut star = Star::new(context().checked_domain().unwrap(), 2);
    star.shared.post_receive(star.domain.buffer(4).unwrap()).unwrap();
    star.send(0, b"much more than four");
    let failure = star.received.wait(PATIENCE).unwrap().check().unwrap_err();
    assert!(matches!(failure.status, Status::LocalLength | Status::LocalQueuePairOperation), "{failure}");
    assert_eq!((failure.queue_pair, failure.operation), (star.servers[0].number(), Operation::Receive));
    assert_eq!(failure.into_buffer().unwrap().capacity(), 4);
    assert!(star.servers[0].is_broken());
    star.stock(1);
    star.send(1, b"still here");
    assert_eq!(&next(&mut star.received).into_received().unwrap()[..], b"still here");
    assert_eq!(star.servers[1].first_failure(), None);
    star.servers.clear();
    if lacks(Promise::EndAtOnce) {
        assert!(see_off(&star.queue, &mut star.received).is_empty());
    }
    assert!(star.shared.destroy().unwrap().is_empty());
}

#[test]
fn a_pair_comes_up_again_after_a_reset_and_step_by_step() {
    if lacks_need(Need::Reset) {
        return;
    }
    let mut star = Star::new(context().checked_domain().unwrap(), 1);
    star.stock(2);
    star.send(0, b"first");
    assert_eq!(&next(&mut star.received).into_received().unwrap()[..], b"first");
    let port = star.domain.context().active_port().unwrap();
    let (client, server) = (star.clients.remove(0), star.servers.remove(0));
    let client = client.into_reset().unwrap().into_init(&port).unwrap();
    let Some(mut server) = unless_refused(server.into_error().unwrap().into_reset()) else { return };
    // `into_init` succeeds only after both pollers have given out all completions from before the reset.
    let server = loop {
        server = match server.into_init(&port) {
            Ok(server) => break server,
            Err(error) => {
                assert!(matches!(error.source, TransitionFailure::Unsettled), "{error}");
                for poller in [&mut star.sent, &mut star.received] {
                    while poller.poll().unwrap().is_some() {}
                }
                error.queue_pair
            }
        };
    };
    let (to_client, to_server) = (client.endpoint(), server.endpoint());
    let attributes = interlock::attributes::UnreliableRtrAttributes {
        path: interlock::attributes::PeerPath {
            gid: to_client.gid(),
            lid: to_client.lid(),
            ..interlock::attributes::PeerPath::to(interlock::Gid::default())
        },
        path_mtu: to_client.mtu(),
        destination: to_client.queue_pair(),
        receive_psn: to_client.psn(),
    };
    let psn = server.psn();
    star.servers.push(server.into_rtr(&attributes).unwrap().into_rts(psn).unwrap());
    star.clients.push(client.connect(&to_server).unwrap());
    star.send(0, b"second");
    assert_eq!(&next(&mut star.received).into_received().unwrap()[..], b"second");
}

/// Two datagram pairs that receive from one shared queue. Everything completes on one completion queue.
struct Post<B> {
    domain: ProtectionDomain<B>,
    port: Port,
    queue: CompletionQueue<B>,
    poller: Poller<B>,
    shared: SharedReceiveQueue<B, Datagrams>,
    pairs: [Mailbox<B>; 2],
}

impl<B: Brand> Post<B> {
    fn new(domain: ProtectionDomain<B>) -> Self {
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.queue(2 * LIMITS.sends + SHARED.receives).unwrap();
        let shared = domain.shared_datagram_queue(&SHARED).unwrap();
        let pair = || shared.datagram(&queue, &LIMITS).unwrap().into_init(&port).unwrap().open().unwrap();
        let pairs = [pair(), pair()];
        assert_eq!(queue.room(), 0, "receives are leased once");
        Self { domain, port, queue, poller, shared, pairs }
    }

    fn stock(&mut self, count: usize, len_bytes: usize) {
        for buffer in self.domain.buffers(count, len_bytes).unwrap() {
            self.shared.post_receive(buffer).unwrap();
        }
    }

    fn to(&self, pair: usize) -> Recipient<B> {
        self.domain.recipient(&self.port, &self.pairs[pair].endpoint(), Qkey::USUAL).unwrap()
    }

    fn send(&mut self, from: usize, text: &[u8], to: &Recipient<B>) {
        self.pairs[from].post_send_to(Inline(text), to).unwrap();
    }

    /// The datagrams among the next completions, each with the number of the pair that took it.
    fn arrived(&mut self, completions: usize) -> Vec<(interlock::number::Qpn, Datagram<B>)> {
        let arrived = (0..completions).filter_map(|_| {
            let success = next(&mut self.poller);
            let pair = success.queue_pair();
            match success.into_work() {
                Work::Datagram(datagram) => Some((pair, datagram)),
                Work::Sent(_) => None,
                other => panic!("{other:?}"),
            }
        });
        arrived.collect()
    }
}

#[test]
fn a_datagram_says_who_sent_it_and_who_took_it() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let mut post = Post::new(context().checked_domain().unwrap());
    post.stock(4, 40 + 64);
    let (to_first, to_second) = (post.to(0), post.to(1));
    let [first, second] = [post.pairs[0].number(), post.pairs[1].number()];
    post.send(0, b"to the second", &to_second);
    post.send(1, b"to the first", &to_first);
    post.send(1, b"to itself", &to_second);
    let mut arrived = post.arrived(6);
    arrived.sort_by_key(|(_, datagram)| datagram.message().to_vec());
    let seen: Vec<_> =
        arrived.iter().map(|(taken_by, datagram)| (datagram.message(), datagram.sender, *taken_by)).collect();
    let expected: [(&[u8], _, _); 3] =
        [(b"to itself", second, second), (b"to the first", second, first), (b"to the second", first, second)];
    assert_eq!(seen, expected);
    // The datagram can be answered, and its buffer can be posted again.
    let (_, datagram) = arrived.remove(1);
    assert!(datagram.header().is_some());
    let sender = post.domain.sender(&post.port, &datagram, Qkey::USUAL).unwrap();
    post.shared.post_receive(datagram.into_buffer()).unwrap();
    post.send(0, b"thank you", &sender);
    let answer = post.arrived(2);
    assert_eq!(
        answer.iter().map(|(pair, it)| (*pair, it.message())).collect::<Vec<_>>(),
        [(second, &b"thank you"[..])]
    );
}

#[test]
fn a_receive_without_room_for_the_header_comes_back() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let mut shared = domain.shared_datagram_queue(&SHARED).unwrap();
    let mut buffer = domain.buffer(39).unwrap();
    buffer.write(b"as it was").unwrap();
    match shared.post_receive(buffer) {
        Err(PostError::Flawed { request, flaw: RequestFlaw::NoRoomForHeader { len_bytes: 39 } }) => {
            assert_eq!(&request[..], b"as it was");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(shared.in_flight(), 0);
    // Messages of connections have no header, so a receive of one byte is allowed.
    let mut connections = domain.shared_receive_queue(&SHARED).unwrap();
    connections.post_receive(domain.buffer(1).unwrap()).unwrap();
}

/// The smallest receive that can be posted takes a datagram without content.
#[test]
fn forty_bytes_take_an_empty_datagram() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let mut post = Post::new(context().checked_domain().unwrap());
    post.stock(1, 40);
    let to = post.to(1);
    post.send(0, b"", &to);
    let arrived = post.arrived(2);
    assert_eq!(arrived.iter().map(|(_, datagram)| datagram.message().len()).collect::<Vec<_>>(), [0]);
}

#[test]
fn a_datagram_without_a_shared_receive_is_lost() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let mut pause = A_WHILE;
    loop {
        let mut post = Post::new(domain.clone());
        let to = post.to(1);
        post.send(0, b"lost", &to);
        assert!(post.arrived(1).is_empty());
        assert!(post.poller.wait_for(pause).unwrap().is_none());
        post.stock(1, 104);
        post.send(0, b"kept", &to);
        let arrived = post.arrived(2);
        let messages: Vec<_> = arrived.iter().map(|(_, datagram)| datagram.message()).collect();
        if messages == [b"kept"] {
            break;
        }
        // Perhaps the device was slow, and looked for a receive only after there was one.
        pause *= 2;
        assert!(messages == [b"lost"] && on_hardware() && pause < PATIENCE, "{arrived:?}");
    }
}

/// The receive of a datagram that is too long comes back once, whatever the device does with the datagram, and the
/// other pair still works.
#[test]
fn a_datagram_too_long_for_its_receive_is_no_message() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let mut post = Post::new(context().checked_domain().unwrap());
    post.stock(1, 48);
    let (to_first, to_second) = (post.to(0), post.to(1));
    post.send(1, b"more than eight bytes", &to_first);
    let (mut sent, mut failures) = (0, Vec::new());
    while let Ok(completion) = post.poller.wait(A_WHILE) {
        match completion.check() {
            Ok(success) => {
                assert_eq!(success.operation(), Operation::Send);
                sent += 1;
            }
            Err(failure) => failures.push(failure),
        }
    }
    post.stock(1, 104);
    post.send(1, b"small", &to_second);
    let mut messages = Vec::new();
    while sent < 2 || messages.is_empty() {
        match post.poller.wait(PATIENCE).unwrap().check() {
            Ok(success) => match success.into_work() {
                Work::Datagram(datagram) => messages.push(datagram.message().to_vec()),
                Work::Sent(_) => sent += 1,
                other => panic!("{other:?}"),
            },
            // A slow device fails the receive of the first datagram only now.
            Err(failure) => failures.push(failure),
        }
    }
    assert_eq!(messages, [b"small"]);
    for failure in &failures {
        assert_eq!((failure.queue_pair, failure.operation), (post.pairs[0].number(), Operation::Receive), "{failure}");
        assert_eq!(failure.memory.capacity(), 48);
    }
    assert_eq!(failures.len() as u32 + post.shared.in_flight(), 1, "{failures:?}");
    assert_eq!(post.pairs[0].is_broken(), !failures.is_empty());
    println!("a datagram too long: {:?}", failures.iter().map(|failure| failure.status).collect::<Vec<_>>());
}

#[test]
fn a_queue_of_datagrams_is_destroyed_after_its_pairs_and_gives_its_receives_back() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let mut post = Post::new(context().checked_domain().unwrap());
    post.stock(3, 64);
    let error = post.shared.destroy().unwrap_err();
    assert_eq!((error.source.errno(), error.source.verb()), (libc::EBUSY, "ibv_destroy_srq"));
    drop(post.pairs);
    if lacks(Promise::EndAtOnce) {
        assert!(see_off(&post.queue, &mut post.poller).is_empty());
    }
    let back: Vec<Buffer<_>> = error.shared.destroy().unwrap();
    assert_eq!(back.iter().map(Buffer::capacity).collect::<Vec<_>>(), [64; 3]);
    assert!(post.poller.poll().unwrap().is_none());
}

#[test]
fn a_pair_of_datagrams_comes_up_step_by_step_with_another_key() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let mut post = Post::new(context().checked_domain().unwrap());
    let (queue, mut poller) = post.domain.queue(LIMITS.sends + SHARED.receives).unwrap();
    let pair = post.shared.datagram_on(&queue, &queue, &LIMITS).unwrap().into_init(&post.port).unwrap();
    let mut pair = pair.into_rtr().unwrap().into_rts().unwrap();
    let qkey = Qkey(0x1234);
    pair.set_qkey(qkey).unwrap();
    let to = post.domain.recipient(&post.port, &pair.endpoint(), qkey).unwrap();
    post.stock(1, 104);
    post.send(0, b"with its key", &to);
    assert!(post.arrived(1).is_empty());
    match next(&mut poller).into_work() {
        Work::Datagram(datagram) => assert_eq!(datagram.message(), b"with its key"),
        other => panic!("{other:?}"),
    }
}

/// The sends stop, the shared receives continue, and the pair can be resumed.
#[test]
fn a_failing_send_stops_the_sends_only() {
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "unreliable").unwrap();
    let done = context.with_domain(|domain| {
        let mut post = Post::new(domain);
        post.stock(2, 104);
        let (to_first, to_second) = (post.to(0), post.to(1));
        fabric.inject(Fault::RequestsFail { count: 1 });
        post.send(0, b"fails", &to_second);
        drop(post.poller.wait(PATIENCE).unwrap().check().unwrap_err());
        let posted = post.pairs[0].post_send_to(Inline(b"x"), &to_second);
        assert!(matches!(posted, Err(PostError::Broken { .. })));
        post.send(1, b"still", &to_first);
        assert_eq!(post.arrived(2).len(), 1);
        let [first, second] = post.pairs;
        let first = first.into_sqe().expect("the device says so").resume().expect("all sends are out");
        post.pairs = [first, second];
        post.send(0, b"again", &to_second);
        assert_eq!(post.arrived(2).len(), 1);
    });
    done.unwrap();
}

support::also_extended![
    each_message_comes_once_with_the_pair_that_took_it,
    a_message_without_a_shared_receive_is_lost_and_the_next_arrives,
    a_message_too_long_fails_the_pair_that_took_it_alone,
    a_pair_comes_up_again_after_a_reset_and_step_by_step,
    a_datagram_says_who_sent_it_and_who_took_it,
    a_receive_without_room_for_the_header_comes_back,
    forty_bytes_take_an_empty_datagram,
    a_datagram_without_a_shared_receive_is_lost,
    a_datagram_too_long_for_its_receive_is_no_message,
    a_queue_of_datagrams_is_destroyed_after_its_pairs_and_gives_its_receives_back,
    a_pair_of_datagrams_comes_up_step_by_step_with_another_key,
    a_failing_send_stops_the_sends_only,
];
