//! Shared receive queues: many pairs take receives from one stock.

use interlock::attributes::ConnectAttributes;
use interlock::error::{CreateError, TransitionFailure};
use interlock::number::Qpn;
use interlock::request::Operation;
use interlock::shared::{SharedLimits, SharedReceiveQueue};
use interlock::transport::OnShared;
use interlock::{
    Brand, Buffer, CompletionQueue, Init, Limits, Poller, Port, PostError, ProtectionDomain, QueuePair, ReadyToSend,
    ReliableConnection, RemoteWrite, Reset, Status, Success, Work,
};
use std::collections::{HashMap, HashSet};
use std::{mem, thread};
use support::{
    Need, PATIENCE, Promise, Queues, all, connect_to_each_other, context, deviates, eventually, failure, lacks,
    lacks_need, on_hardware, see_off, unless_refused,
};

type Server<B, S = ReadyToSend> = QueuePair<B, S, OnShared<ReliableConnection>>;

const LIMITS: Limits =
    Limits { sends: 4, receives: 4, inline_bytes: 0, elements: 1, posting: interlock::queue::Posting::List };

/// Clients that are each connected to a server. The servers receive from one shared queue. All sends complete on
/// `sent`, and all receives on `received`. Where a pair has only one queue, all requests of a server complete on
/// `received`.
struct Star<B> {
    domain: ProtectionDomain<B>,
    port: Port,
    sent: (CompletionQueue<B>, Poller<B>),
    received: (CompletionQueue<B>, Poller<B>),
    shared: SharedReceiveQueue<B>,
    clients: Vec<QueuePair<B>>,
    servers: Vec<Server<B>>,
}

impl<B: Brand> Star<B> {
    fn new(domain: ProtectionDomain<B>, pairs: usize, receives: u32) -> Self {
        let port = domain.context().active_port().unwrap();
        let sent = domain.queue(16 * pairs as u32).unwrap();
        let received = domain.queue(receives + sends_on_received(pairs)).unwrap();
        let shared = domain.shared_receive_queue(&SharedLimits { receives, grows_to: 0 }).unwrap();
        let mut star = Self { domain, port, sent, received, shared, clients: Vec::new(), servers: Vec::new() };
        for _ in 0..pairs {
            star.add();
        }
        star
    }

    fn server(&self) -> Server<B, Reset> {
        self.shared.reliable_on(self.queue_of_sends(), &self.received.0, &LIMITS).unwrap()
    }

    /// The queue on which sends of the servers complete.
    fn queue_of_sends(&self) -> &CompletionQueue<B> {
        if has_two_queues() { &self.sent.0 } else { &self.received.0 }
    }

    fn client(&self) -> QueuePair<B, Reset> {
        self.domain.reliable(&self.sent.0, &LIMITS).unwrap()
    }

    fn add(&mut self) {
        let (client, server) =
            (self.client().into_init(&self.port).unwrap(), self.server().into_init(&self.port).unwrap());
        let (client, server) = join(&self.domain, client, server);
        self.clients.push(client);
        self.servers.push(server);
    }

    fn stock(&mut self, count: usize) {
        for buffer in self.domain.buffers(count, 64).unwrap() {
            self.shared.post_receive(buffer).unwrap();
        }
    }

    fn send(&mut self, client: usize, text: &[u8]) {
        let mut buffer = self.domain.buffer(64).unwrap();
        buffer.write(text).unwrap();
        self.clients[client].post_send(buffer).unwrap();
    }

    /// Sends a message, and waits until it has arrived.
    fn deliver(&mut self, client: usize, text: &[u8]) {
        self.send(client, text);
        self.sent.1.wait(PATIENCE).unwrap().check().unwrap();
    }

    fn next(&mut self) -> Success<B> {
        self.received.1.wait(PATIENCE).unwrap().check().unwrap()
    }
}

fn has_two_queues() -> bool {
    context().promises().pairs_may_have_two_queues()
}

/// How many completions of sends `Star::received` must hold, with so many servers.
fn sends_on_received(pairs: usize) -> u32 {
    if has_two_queues() { 0 } else { LIMITS.sends * pairs as u32 }
}

fn join<B: Brand>(
    domain: &ProtectionDomain<B>,
    client: QueuePair<B, Init>,
    server: Server<B, Init>,
) -> (QueuePair<B>, Server<B>) {
    connect_to_each_other(domain, client, server, &ConnectAttributes::default())
}

#[test]
fn each_message_comes_once_with_the_pair_that_took_it() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 3, 16);
    star.stock(16);
    let mut expected = HashSet::new();
    for round in 0..4 {
        for client in 0..3 {
            let text = format!("{round} of {client}");
            star.send(client, text.as_bytes());
            expected.insert((star.servers[client].number(), text));
        }
        for _ in 0..3 {
            star.sent.1.wait(PATIENCE).unwrap().check().unwrap();
        }
    }
    let mut ids = HashSet::new();
    for _ in 0..12 {
        let success = star.next();
        assert!(ids.insert(success.id()));
        let number = success.queue_pair();
        let Work::Received(received) = success.into_work() else { panic!("not a message") };
        let text = String::from_utf8(received.buffer.to_vec()).unwrap();
        assert!(expected.remove(&(number, text.clone())), "{text:?} on {number:?}");
    }
    assert_eq!((expected.len(), star.shared.in_flight()), (0, 4));
    assert_eq!(star.received.1.unknown_completions(), 0);
}

#[test]
fn receives_are_posted_again_and_again() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 2, 3);
    star.stock(3);
    let mut ids = HashSet::new();
    for round in 0..if cfg!(miri) { 20 } else { 200_u32 } {
        star.deliver(round as usize % 2, &round.to_ne_bytes());
        let success = star.next();
        assert!(ids.insert(success.id()), "the id of an earlier request");
        assert_eq!(success.queue_pair(), star.servers[round as usize % 2].number());
        let buffer = success.into_received().unwrap();
        assert_eq!(buffer[..], round.to_ne_bytes());
        star.shared.post_receive(buffer).unwrap();
    }
    assert_eq!((star.shared.in_flight(), star.received.1.unknown_completions()), (3, 0));
}

#[test]
fn a_full_queue_gives_the_buffer_back_until_a_message_came() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 1, 2);
    star.stock(2);
    let refused = star.shared.post_receive(star.domain.buffer(64).unwrap()).unwrap_err();
    let PostError::QueueFull(buffer) = refused else { panic!("{refused}") };
    star.deliver(0, b"room");
    let PostError::QueueFull(buffer) = star.shared.post_receive(buffer).unwrap_err() else { panic!("not polled yet") };
    let polled = star.next().into_received().unwrap();
    star.shared.post_receive(buffer).unwrap();
    assert!(matches!(star.shared.post_receive(polled), Err(PostError::QueueFull(_))));
}

#[test]
fn a_write_with_immediate_takes_a_shared_receive() {
    if lacks_need(Need::Immediates) || lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 1, 2);
    star.stock(1);
    let region = star.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let mut buffer = star.domain.buffer(8).unwrap();
    buffer.write(&7_u64.to_ne_bytes()).unwrap();
    star.clients[0].post_write_with_immediate(buffer, &region.remote(), 9).unwrap();
    let Work::WrittenWithImmediate(written) = star.next().into_work() else { panic!("not a write") };
    assert_eq!((written.immediate, written.written_bytes, written.buffer.capacity()), (9, 8, 64));
}

#[test]
fn a_server_answers_on_the_pair_that_a_message_came_to() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 2, 4);
    star.stock(2);
    star.clients[1].post_receive(star.domain.buffer(64).unwrap()).unwrap();
    star.deliver(1, b"ping");
    let success = star.next();
    let mut by_number: HashMap<Qpn, &mut Server<Test>> =
        star.servers.iter_mut().map(|server| (server.number(), server)).collect();
    let server = by_number.get_mut(&success.queue_pair()).unwrap();
    server.post_send(success.into_received().unwrap()).unwrap();
    let mut answer = None;
    while answer.is_none() {
        answer = star.sent.1.wait(PATIENCE).unwrap().check().unwrap().into_received().ok();
    }
    assert_eq!(&answer.unwrap()[..], b"ping");
}

#[test]
fn the_limit_goes_off_once() {
    if lacks_need(Need::SharedQueries) || lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 1, 4);
    star.stock(4);
    star.shared.arm_limit(3).unwrap();
    star.deliver(0, b"3 are left");
    assert_eq!(star.shared.query().unwrap().limit, 3);
    star.deliver(0, b"2 are left");
    assert!(eventually(|| star.shared.query().unwrap().limit == 0), "the limit event takes the limit away");
    star.shared.arm_limit(1).unwrap();
    assert_eq!(star.shared.query().unwrap().limit, 1, "armed again");
    star.shared.arm_limit(0).unwrap();
    assert_eq!(star.shared.query().unwrap().limit, 0);
}

#[test]
fn a_limit_above_the_size_is_refused() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let shared = domain.shared_receive_queue(&SharedLimits { receives: 4, grows_to: 8 }).unwrap();
    let error = shared.arm_limit(5).unwrap_err();
    assert_eq!((error.errno(), error.verb()), (libc::EINVAL, "ibv_modify_srq"));
    shared.arm_limit(4).unwrap();
}

#[test]
fn a_queue_is_resized_within_its_limits() {
    if lacks_need(Need::SharedQueries) || lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 2, grows_to: 20 }).unwrap();
    let mut buffers = domain.buffers(21, 64).unwrap();
    let mut post = |shared: &mut SharedReceiveQueue<Test>, count: usize| {
        let full = (0..count).filter(|_| shared.post_receive(buffers.pop().unwrap()).is_err()).count();
        assert_eq!(full, 0);
    };
    post(&mut shared, 2);
    assert!(shared.post_receive(domain.buffer(64).unwrap()).is_err());
    shared.resize(20).unwrap();
    assert_eq!(shared.limits(), SharedLimits { receives: 20, grows_to: 20 });
    assert!(shared.query().unwrap().receives >= 20);
    post(&mut shared, 18);
    assert!(shared.post_receive(domain.buffer(64).unwrap()).is_err());
    for refused in [0, 19, 21] {
        assert_eq!(shared.resize(refused).unwrap_err().errno(), libc::EINVAL, "{refused}");
        assert_eq!(shared.limits().receives, 20);
    }
    let back = shared.destroy().unwrap();
    assert_eq!(back.len(), 20);
}

/// Soft-RoCE unmaps the old queue before it maps the new one. In this test the new one gets no address space, so a
/// later post would write to unmapped memory.
#[test]
fn a_queue_whose_resize_failed_in_the_middle_takes_no_more() {
    if lacks_need(Need::SharedQueries) || lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 2, grows_to: 4096 }).unwrap();
    let (first, second) = (domain.buffer(64).unwrap(), domain.buffer(64).unwrap());
    shared.post_receive(first).unwrap();
    if on_hardware() {
        let failed = without_addresses(|| shared.resize(4096)).unwrap_err();
        assert_eq!((failed.errno(), failed.verb()), (libc::ENOMEM, "ibv_modify_srq"));
        let refused = shared.post_receive(second).unwrap_err();
        assert!(matches!(refused, PostError::Broken { first_failure: None, .. }), "{refused}");
        assert_eq!(shared.resize(2).unwrap_err().errno(), libc::EINVAL);
    }
    assert_eq!(shared.destroy().unwrap().len(), 1);
}

/// On some devices, a limit that exceeds the number of posted receives triggers at once and is then no longer armed.
#[test]
fn a_queue_is_not_made_smaller_than_the_armed_limit() {
    if lacks_need(Need::SharedQueries) || lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 4, grows_to: 8 }).unwrap();
    shared.arm_limit(4).unwrap();
    let is_armed = shared.query().unwrap().limit != 0;
    let resized = shared.resize(2).map_err(|error| error.errno());
    assert_eq!(resized, if is_armed { Err(libc::EINVAL) } else { Ok(()) });
    assert_eq!(shared.limits().receives, if is_armed { 4 } else { 2 });
    shared.post_receive(domain.buffer(64).unwrap()).unwrap();
}

/// Runs `f` while the process cannot map any more memory.
fn without_addresses<R>(f: impl FnOnce() -> R) -> R {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `old` is valid for writes.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut old) }, 0);
    let low = libc::rlimit { rlim_cur: 1, ..old };
    // SAFETY: `low` is valid for reads.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &low) }, 0);
    let result = f();
    // SAFETY: `old` is valid for reads.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &old) }, 0);
    result
}

#[test]
fn messages_arrive_after_a_resize() {
    if lacks_need(Need::SharedQueries) || lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let (queue, mut poller) = domain.queue(32).unwrap();
    let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 2, grows_to: 16 }).unwrap();
    let port = domain.context().active_port().unwrap();
    let client = domain.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
    let server = shared.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
    let (mut client, _server) = join(&domain, client, server);
    let mut depth = 2;
    for size in [4, 16, 8, 1, 16] {
        shared.resize(size).unwrap();
        depth = depth.max(size);
        for _ in 0..size {
            shared.post_receive(domain.buffer(64).unwrap()).unwrap();
        }
        for _ in 0..size {
            client.post_send(domain.buffer(8).unwrap()).unwrap();
            for _ in 0..2 {
                poller.wait(PATIENCE).unwrap().check().unwrap();
            }
        }
        assert_eq!(shared.in_flight(), 0);
    }
}

#[test]
fn the_receives_of_a_pair_in_error_go_to_the_others() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 2, 4);
    star.stock(2);
    let mut broken = star.servers.remove(0).into_error().unwrap();
    let sends = if has_two_queues() { &mut star.sent.1 } else { &mut star.received.1 };
    broken.drain(sends, PATIENCE, drop).unwrap();
    assert!(all(&mut star.received.1).is_empty(), "shared receives are not flushed");
    assert_eq!(star.shared.in_flight(), 2);
    for text in [b"one", b"two"] {
        star.deliver(1, text);
        assert_eq!(&star.next().into_received().unwrap()[..], text);
    }
}

#[test]
fn a_message_too_long_breaks_the_pair_that_took_it_alone() {
    if lacks_need(Need::Acknowledgements) || lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 2, 4);
    star.shared.post_receive(star.domain.buffer(4).unwrap()).unwrap();
    star.send(0, b"much more than four");
    let error = failure(&mut star.received.1);
    let expected = if deviates("C096") { Status::LocalQueuePairOperation } else { Status::LocalLength };
    assert_eq!(error.status, expected);
    assert_eq!((error.queue_pair, error.operation), (star.servers[0].number(), Operation::Receive));
    assert_eq!(star.servers[0].first_failure(), Some(error.status));
    assert_eq!(error.into_buffer().unwrap().capacity(), 4);
    let buffer = star.domain.buffer(8).unwrap();
    assert!(matches!(star.servers[0].post_send(buffer), Err(PostError::Broken { .. })));
    // The other pairs do not break.
    assert_eq!(star.servers[1].first_failure(), None);
    assert!(failure(&mut star.sent.1).status != Status::Destroyed);
    star.stock(1);
    star.deliver(1, b"still here");
    assert_eq!(&star.next().into_received().unwrap()[..], b"still here");
}

#[test]
fn a_queue_with_pairs_is_not_destroyed() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 1, 4);
    star.stock(3);
    let error = star.shared.destroy().unwrap_err();
    assert_eq!((error.source.errno(), error.source.verb()), (libc::EBUSY, "ibv_destroy_srq"));
    star.shared = error.shared;
    star.deliver(0, b"it lives");
    assert_eq!(&star.next().into_received().unwrap()[..], b"it lives");
    star.servers.clear();
    if lacks(Promise::EndAtOnce) {
        assert!(see_off(&star.received.0, &mut star.received.1).is_empty());
    }
    let back: Vec<Buffer<_>> = star.shared.destroy().unwrap();
    assert_eq!(back.iter().map(Buffer::capacity).collect::<Vec<_>>(), [64, 64]);
    assert!(all(&mut star.received.1).is_empty());
    assert_eq!(star.received.1.unknown_completions(), 0);
}

#[test]
fn pairs_receive_after_the_queues_handle_is_dropped_or_forgotten() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    for forgets in [false, true] {
        // A forgotten handle keeps its domain, and would keep the domain's name too. So each round uses a domain
        // without a name.
        context()
            .with_domain(|domain| {
                let mut star = Star::new(domain, 1, 2);
                star.stock(2);
                let spare = star.domain.shared_receive_queue(&SharedLimits::default()).unwrap();
                let shared = mem::replace(&mut star.shared, spare);
                if forgets {
                    mem::forget(shared)
                } else {
                    drop(shared)
                }
                for text in [b"one", b"two"] {
                    star.deliver(0, text);
                    assert_eq!(&star.next().into_received().unwrap()[..], text);
                }
            })
            .unwrap();
    }
    context().named_domain(Test).unwrap();
}

#[test]
fn messages_come_out_after_pair_and_queue_are_gone() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 1, 4);
    star.stock(3);
    star.deliver(0, b"late");
    star.servers.clear();
    drop(star.shared);
    let mut out = see_off(&star.received.0, &mut star.received.1);
    assert_eq!(out.len(), 1, "what did not complete is dropped");
    let buffer = out.remove(0).check().unwrap().into_received().unwrap();
    assert_eq!(&buffer[..], b"late");
    assert_eq!(star.received.0.room(), star.received.0.capacity());
}

#[test]
fn a_destroy_gives_what_was_not_polled_and_the_poller_gives_it_not_again() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 1, 4);
    star.stock(3);
    star.deliver(0, b"unseen");
    star.servers.clear();
    if lacks(Promise::EndAtOnce) {
        // Without this promise, the poller destroys the pair after it has returned the pair's earlier completions.
        // Until then, the shared queue cannot be destroyed.
        let error = star.shared.destroy().unwrap_err();
        assert_eq!(error.source.errno(), libc::EBUSY);
        assert_eq!(see_off(&star.received.0, &mut star.received.1).len(), 1);
        assert_eq!(error.shared.destroy().unwrap().len(), 2);
        return;
    }
    assert_eq!(star.shared.destroy().unwrap().len(), 3);
    assert!(all(&mut star.received.1).is_empty());
    assert_eq!(star.received.1.unknown_completions(), 0, "it is no fault of the provider's");
    assert_eq!(star.received.0.room(), star.received.0.capacity());
}

#[test]
fn a_completion_queue_leases_room_once_for_all_pairs_of_a_shared_queue() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 3, 8);
    let sends = sends_on_received(3);
    assert_eq!((star.received.0.capacity(), star.received.0.room()), (8 + sends, 0));
    let other = star.domain.shared_receive_queue(&SharedLimits { receives: 1, grows_to: 4 }).unwrap();
    let refused = other.reliable_on(star.queue_of_sends(), &star.received.0, &LIMITS).unwrap_err();
    let CreateError::NoRoom(no_room) = refused else { panic!("{refused}") };
    assert_eq!((no_room.needed, no_room.free), (4 + sends_on_received(1), 0));
    if lacks(Promise::EndAtOnce) {
        star.servers.clear();
        assert!(see_off(&star.received.0, &mut star.received.1).is_empty());
        return;
    }
    let sends = star.sent.0.room();
    star.servers.truncate(1);
    assert!(all(&mut star.received.1).is_empty());
    assert_eq!(star.received.0.room(), 0, "one is left");
    star.servers.clear();
    assert_eq!(star.received.0.room(), 0, "completions may be in the queue");
    star.add();
    assert!(all(&mut star.received.1).is_empty());
    assert_eq!(star.received.0.room(), 0, "one came before that was seen");
    star.servers.clear();
    assert!(all(&mut star.received.1).is_empty());
    assert_eq!(star.received.0.room(), 8);
    assert!(all(&mut star.sent.1).is_empty());
    assert_eq!(star.sent.0.room(), sends + 3 * LIMITS.sends - LIMITS.completions());
}

#[test]
fn a_pair_comes_up_again_after_a_reset() {
    if lacks_need(Need::Reset) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 1, 4);
    for text in [b"one", b"two", b"six"] {
        star.stock(1);
        star.deliver(0, text);
        let Some(server) = unless_refused(star.servers.remove(0).into_reset()) else { return };
        let client = star.clients.remove(0).into_reset().unwrap().into_init(&star.port).unwrap();
        let error = server.into_init(&star.port).unwrap_err();
        assert!(matches!(error.source, TransitionFailure::Unsettled), "{error}");
        assert_eq!(&star.next().into_received().unwrap()[..], text, "it came before");
        assert!(all(&mut star.received.1).is_empty() && all(&mut star.sent.1).is_empty());
        let (client, server) = join(&star.domain, client, error.queue_pair.into_init(&star.port).unwrap());
        star.clients.push(client);
        star.servers.push(server);
    }
    assert_eq!(star.received.0.room(), 0);
}

#[test]
fn two_threads_poll_for_many_pairs_while_a_third_posts() {
    // The third thread can be late with the receives, so messages must be able to wait.
    if lacks_need(Need::Waiting) || lacks_need(Need::SharedReceives) {
        return;
    }
    const EACH: usize = if cfg!(miri) { 10 } else { 300 };
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 8, grows_to: 0 }).unwrap();
    for buffer in domain.buffers(8, 64).unwrap() {
        shared.post_receive(buffer).unwrap();
    }
    let (back, stock) = std::sync::mpsc::channel::<Buffer<Test>>();
    thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (queue, mut poller) = domain.queue(64).unwrap();
            let mut clients = Vec::new();
            let mut servers = Vec::new();
            for _ in 0..3 {
                let client = domain.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
                let server = shared.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
                let (client, server) = join(&domain, client, server);
                clients.push(client);
                servers.push(server);
            }
            let (back, domain) = (back.clone(), domain.clone());
            scope.spawn(move || {
                for round in 0..EACH as u64 {
                    let at = round as usize % 3;
                    let mut buffer = domain.buffer(16).unwrap();
                    buffer.write(&(thread << 32 | round).to_ne_bytes()).unwrap();
                    clients[at].post_send(buffer).unwrap();
                    for _ in 0..2 {
                        let success = poller.wait(PATIENCE).unwrap().check().unwrap();
                        let pair = success.queue_pair();
                        if let Ok(message) = success.into_received() {
                            assert_eq!(message[..], (thread << 32 | round).to_ne_bytes());
                            assert_eq!(pair, servers[at].number());
                            back.send(message).unwrap();
                        }
                    }
                }
                assert_eq!(poller.unknown_completions(), 0);
            });
        }
        drop(back);
        for buffer in stock {
            shared.post_receive(buffer).unwrap();
        }
    });
    assert_eq!(shared.in_flight(), 8);
    assert_eq!(shared.destroy().unwrap().len(), 8);
}

/// Completions that were not polled are lost with their queue, but the memory of their requests comes back.
#[test]
fn a_completion_queue_that_ends_unpolled_gives_its_shared_receives_back() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut star = Star::new(context().named_domain(Test).unwrap(), 1, 4);
    for round in 0..5 {
        star.stock(4 - star.shared.in_flight() as usize);
        assert_eq!(star.shared.in_flight(), 4, "round {round}");
        for _ in 0..3 {
            star.deliver(0, b"nobody looks");
        }
        let received = star.domain.queue(4 + sends_on_received(1)).unwrap();
        star.servers.clear();
        star.clients.clear();
        drop(mem::replace(&mut star.received, received));
        drop(all(&mut star.sent.1));
        assert_eq!(star.shared.in_flight(), 1, "round {round}");
        star.add();
    }
}

support::also_extended![
    each_message_comes_once_with_the_pair_that_took_it,
    receives_are_posted_again_and_again,
    a_full_queue_gives_the_buffer_back_until_a_message_came,
    a_write_with_immediate_takes_a_shared_receive,
    a_server_answers_on_the_pair_that_a_message_came_to,
    the_limit_goes_off_once,
    a_limit_above_the_size_is_refused,
    a_queue_is_resized_within_its_limits,
    a_queue_whose_resize_failed_in_the_middle_takes_no_more,
    a_queue_is_not_made_smaller_than_the_armed_limit,
    messages_arrive_after_a_resize,
    the_receives_of_a_pair_in_error_go_to_the_others,
    a_message_too_long_breaks_the_pair_that_took_it_alone,
    a_queue_with_pairs_is_not_destroyed,
    pairs_receive_after_the_queues_handle_is_dropped_or_forgotten,
    messages_come_out_after_pair_and_queue_are_gone,
    a_destroy_gives_what_was_not_polled_and_the_poller_gives_it_not_again,
    a_completion_queue_leases_room_once_for_all_pairs_of_a_shared_queue,
    a_pair_comes_up_again_after_a_reset,
    two_threads_poll_for_many_pairs_while_a_third_posts,
    a_completion_queue_that_ends_unpolled_gives_its_shared_receives_back,
];
