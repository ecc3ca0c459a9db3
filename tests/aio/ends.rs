//! The end of a pair wakes all whom it concerns. In each test all room is promised and no send is in flight, so no
//! completion of a send wakes the line.

use super::*;

/// A future that waits for room behind a permit that was forgotten, and the count of its wake-ups.
fn waits<B: Brand>(shared: &SharedSender<B>) -> (Arc<Count>, Pin<Box<impl Future + use<'_, B>>>) {
    mem::forget(block_on(shared.room()).unwrap());
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut room = Box::pin(shared.room());
    assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    (woken, room)
}

/// A pair whose sends and receives complete on two queues, with a poller each, and its peer.
struct Apart<B: Brand> {
    domain: ProtectionDomain<B>,
    at_sends: SharedPoller<B>,
    at_receives: SharedPoller<B>,
    sender: Sender<B>,
    receiver: Receiver<B>,
    peer: QueuePair<B, ReadyToSend>,
}

impl<B: Brand> Apart<B> {
    /// With room for one send. The peer completes with the sends.
    fn new(domain: ProtectionDomain<B>) -> Self {
        Self::at(domain, true)
    }

    /// As [`new`](Self::new), or with both halves at the poller of the sends.
    fn at(domain: ProtectionDomain<B>, is_apart: bool) -> Self {
        let port = domain.context().active_port().unwrap();
        let [(sends, at_sends), (receives, at_receives)] = [(); 2].map(|()| domain.completion_queue(32).unwrap());
        let [at_sends, at_receives] = [at_sends, at_receives].map(SharedPoller::new);
        let limits = Limits { sends: 1, receives: 4, ..Limits::default() };
        let (queue, poller) = if is_apart { (&receives, &at_receives) } else { (&sends, &at_sends) };
        let pair = domain.reliable_on(&sends, queue, &limits).unwrap().into_init(&port).unwrap();
        let peer = domain.reliable(&sends, &Limits { sends: 8, ..limits }).unwrap().into_init(&port).unwrap();
        let (pair, peer) = connect_to_each_other(&domain, pair, peer, &ConnectAttributes::default());
        let (sender, receiver) = SharedPoller::split_on(&at_sends, poller, pair).unwrap();
        Self { domain, at_sends, at_receives, sender, receiver, peer }
    }
}

/// A message that is too long for a receive of 8 bytes.
fn long<B: Brand>(domain: &ProtectionDomain<B>) -> Buffer<B> {
    let mut long = domain.buffer(64).unwrap();
    long.set_len(64).unwrap();
    long
}

#[test]
fn who_waits_for_room_is_woken_when_the_pair_is_aborted() {
    let Tasks { poller, left: (sender, _receiver), right: _right, .. } =
        Tasks::new(context().checked_domain().unwrap(), 1);
    let _driver = poller.driver().unwrap();
    let shared = sender.into_shared();
    let (woken, mut room) = waits(&shared);
    shared.with(|sender| sender.abort()).unwrap();
    assert!(woken.0.load(Ordering::SeqCst) > 0);
    assert!(room.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn who_waits_for_room_is_woken_when_a_receive_fails() {
    let context = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap();
    let Tasks { domain, poller, left: (sender, mut receiver), right: (mut peer, _other) } =
        Tasks::new(context.checked_domain().unwrap(), 1);
    let mut driver = poller.driver().unwrap();
    let shared = sender.into_shared();
    let (woken, mut room) = waits(&shared);
    receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
    driver.block_on(peer.send(long(&domain)).unwrap()).unwrap().unwrap_err();
    assert!(support::eventually(|| {
        takes_turns(&mut driver);
        woken.0.load(Ordering::SeqCst) > 0
    }));
    assert!(room.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

/// The sends and the receives of a pair complete on two queues, each with a driver that sleeps. A receive fails, also
/// when the receiver is gone already. The task waits at the poller of the sends.
#[test]
fn who_waits_for_room_is_woken_when_a_receive_fails_at_another_poller() {
    if lacks_need(Need::TwoQueues) {
        return;
    }
    for drops in [false, true] {
        let apart = Apart::new(context().checked_domain().unwrap());
        let Apart { domain, at_sends, at_receives, sender, mut receiver, mut peer } = apart;
        let drivers = [&at_sends, &at_receives].map(|poller| {
            let driver = poller.driver().unwrap();
            thread::spawn(move || driver.run_on_thread().unwrap())
        });
        let shared = sender.into_shared();
        let (woken, room) = waits(&shared);
        receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
        let receiver = (!drops).then_some(receiver);
        peer.post_send(long(&domain)).unwrap();
        assert!(support::eventually(|| woken.0.load(Ordering::SeqCst) > 0));
        drop(block_on(room));
        drop((shared, receiver, peer, at_sends, at_receives));
        drivers.into_iter().for_each(|driver| driver.join().unwrap());
    }
}

/// A receiver waits for a buffer of its pool. A send fails at the poller of the sends, where nobody polls.
#[test]
fn a_receiver_that_waits_for_the_pool_sees_a_send_that_fails_at_another_poller() {
    let (_fabric, domain) = support::own_device!();
    let Apart { domain, at_sends: _at_sends, at_receives, mut sender, mut receiver, mut peer } = Apart::new(domain);
    let mut driver = at_receives.driver().unwrap();
    let classes = vec![SizeClass { len_bytes: 8, count: 1 }];
    let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() }).unwrap();
    let _taken = pool.try_take(8).unwrap();
    receiver.refill_from(&pool, 8, 1).unwrap();
    peer.post_receive(domain.buffer(8).unwrap()).unwrap();
    let _sent = sender.send(long(&domain)).unwrap();
    assert!(driver.block_on(receiver.next()).unwrap().is_none());
}

/// A post of uncertain outcome breaks the pair: that of a receive, or that of a lent sender.
#[test]
fn who_waits_for_room_is_woken_when_a_post_has_an_uncertain_outcome() {
    for kept in [Fault::ReceiveKept { errno: libc::EINVAL }, Fault::SendKept { errno: libc::EINVAL }] {
        for of_many in [false, true] {
            let fabric = Fabric::new();
            let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
            let Tasks { domain, poller, left: (sender, mut receiver), right: _right } =
                Tasks::new(context.checked_domain().unwrap(), 2);
            let (_region, remote) = target(&domain);
            let _driver = poller.driver().unwrap();
            let shared = sender.into_shared();
            let permit = block_on(shared.room()).unwrap();
            let (woken, mut room) = waits(&shared);
            fabric.inject(kept.clone());
            let buffer = domain.buffer(8).unwrap();
            let is_uncertain = match kept {
                Fault::ReceiveKept { .. } if of_many => {
                    let classes = vec![SizeClass { len_bytes: 8, count: 1 }];
                    let options = PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() };
                    receiver.refill_from(&domain.pool(&options).unwrap(), 8, 1).unwrap();
                    shared.with(|sender| sender.send(Inline(b"")).is_err())
                }
                Fault::ReceiveKept { .. } => matches!(receiver.post_receive(buffer), Err(PostError::Uncertain { .. })),
                _ if of_many => {
                    let write = |buffer| WorkRequest::write(buffer, &remote);
                    permit.with(|sender| sender.post_all(&mut vec![buffer], write)).is_err()
                }
                _ => matches!(permit.with(|sender| sender.send(buffer)), Err(PostError::Uncertain { .. })),
            };
            assert!(is_uncertain);
            assert!(woken.0.load(Ordering::SeqCst) > 0);
            assert!(room.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        }
    }
}

/// A message that is too long for the receive that it takes breaks both pairs. The receive belongs to a shared queue,
/// so it completes in no lane of the pair.
#[test]
fn a_connection_ends_when_a_shared_receive_of_it_fails() {
    for has_stream in [false, true] {
        let (_fabric, domain) = support::own_device!();
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.completion_queue(64).unwrap();
        let poller = SharedPoller::new(poller);
        let mut driver = poller.driver().unwrap();
        let mut stock = domain.shared_receive_queue(&SharedLimits { receives: 8, ..SharedLimits::default() }).unwrap();
        let stream = has_stream.then(|| poller.receives_of(&stock).unwrap());
        let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
        let server = stock.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let client = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let (mut client, server) = connect_to_each_other(&domain, client, server, &ConnectAttributes::default());
        let mut server = Connection::new(&poller, server).unwrap();
        stock.post_receive(domain.buffer(8).unwrap()).unwrap();
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert!(server.poll_closed(&mut context).is_pending());
        client.post_send(long(&domain)).unwrap();
        assert!(support::eventually(|| {
            takes_turns(&mut driver);
            woken.0.load(Ordering::SeqCst) > 0
        }));
        let Poll::Ready(End::Failed(status)) = server.poll_closed(&mut context) else { panic!("it has not ended") };
        assert_eq!(status, Status::LocalLength);
        drop(stream);
    }
}

/// Three pollers. The closing of an old pair ends late, when a new pair has its number.
#[test]
fn the_late_end_of_an_old_pair_hides_nothing_of_a_new_one() {
    for finishes_late in [false, true] {
        let fabric = Fabric::with_profile(Profile::Rxe);
        let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
        let domain = context.checked_domain().unwrap();
        let port = domain.context().active_port().unwrap();
        let [(qa, a), (qb, b), (qc, c), (qd, _d)] = [(); 4].map(|()| domain.completion_queue(16).unwrap());
        let [a, b, c] = [a, b, c].map(SharedPoller::new);
        let [_at_a, mut at_b, _at_c] = [&a, &b, &c].map(|poller| poller.driver().unwrap());
        let limits = Limits { sends: 1, receives: 1, ..Limits::default() };
        let attributes = ConnectAttributes::default();
        let right = domain.reliable(&qd, &limits).unwrap().into_init(&port).unwrap();
        let left = domain.reliable_on(&qa, &qb, &limits).unwrap().into_init(&port).unwrap();
        let (left, _right) = connect_to_each_other(&domain, left, right, &attributes);
        let number = left.number();
        let (mut sender, receiver) = SharedPoller::split_on(&a, &b, left).unwrap();
        let mut sent = sender.send(Inline(b"")).unwrap();
        let panicking = Waker::from(Arc::new(Panicking));
        assert!(Pin::new(&mut sent).poll(&mut Context::from_waker(&panicking)).is_pending());
        fabric.inject(Fault::FlushWithheld);
        let mut closing = sender.close(receiver).unwrap().within(Duration::ZERO);
        assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut closing).is_ready())).is_err());
        fabric.heal();
        if !finishes_late {
            assert!(poll_once(&mut closing).is_ready());
        }
        let left = domain.reliable_on(&qc, &qb, &limits).unwrap().into_init(&port).unwrap();
        let right = domain.reliable(&qd, &limits).unwrap().into_init(&port).unwrap();
        let (left, mut right) = connect_to_each_other(&domain, left, right, &attributes);
        assert_eq!(left.number(), number);
        let (sender, mut receiver) = SharedPoller::split_on(&c, &b, left).unwrap();
        if finishes_late {
            assert!(poll_once(&mut closing).is_ready());
        }
        let shared = sender.into_shared();
        mem::forget(block_on(shared.room()).unwrap());
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut room = Box::pin(shared.room());
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
        right.post_send(long(&domain)).unwrap();
        for _ in 0..10 {
            takes_turns(&mut at_b);
        }
        assert!(woken.0.load(Ordering::SeqCst) > 0, "finishes late: {finishes_late}");
    }
}

/// A post of uncertain outcome ends the connection. Nothing has failed at the device yet.
#[test]
fn the_receives_come_out_after_closed_has_named_an_uncertain_post() {
    let fabric = Fabric::new();
    let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
    let domain = context.checked_domain().unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.completion_queue(16).unwrap();
    let poller = SharedPoller::new(poller);
    let mut driver = poller.driver().unwrap();
    let limits = Limits { sends: 2, receives: 2, ..Limits::default() };
    let pair = || domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let (left, _right) = connect_to_each_other(&domain, pair(), pair(), &ConnectAttributes::default());
    let mut connection = Connection::new(&poller, left).unwrap();
    connection.post_receive(domain.buffer(8).unwrap()).unwrap();
    fabric.inject(Fault::SendKept { errno: libc::EINVAL });
    assert!(matches!(connection.send(domain.buffer(8).unwrap()), Err(PostError::Uncertain { .. })));
    assert!(matches!(driver.block_on(connection.closed()), Ok(End::Failed(_))));
    let mut next = Box::pin(connection.next());
    let came = (0..20).any(|_| {
        takes_turns(&mut driver);
        poll_once(&mut next).is_ready()
    });
    assert!(came, "after every end the receives come out");
}

/// A sender of one task waits for room: its queue is full, since the peer has no receive. A post of a receive has an
/// uncertain outcome, which breaks the pair, with both halves at one poller and at two.
#[test]
fn who_waits_for_room_of_a_sender_of_its_own_is_woken_when_a_receive_is_uncertain() {
    for is_split in [false, true] {
        let (fabric, domain) = support::own_device!();
        let Apart { domain, at_sends, at_receives, mut sender, mut receiver, peer: _peer } =
            Apart::at(domain, is_split);
        let [mut of_sends, mut of_receives] = [&at_sends, &at_receives].map(|poller| poller.driver().unwrap());
        let _sent = sender.send(domain.buffer(8).unwrap()).unwrap();
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert!(sender.poll_room(&mut context).is_pending());
        fabric.inject(Fault::ReceiveKept { errno: libc::EINVAL });
        let posted = receiver.post_receive(domain.buffer(8).unwrap());
        assert!(matches!(posted, Err(PostError::Uncertain { .. })));
        for _ in 0..20 {
            takes_turns(&mut of_sends);
            takes_turns(&mut of_receives);
        }
        let is_woken = woken.0.load(Ordering::SeqCst) > 0;
        assert!(sender.poll_room(&mut context).is_ready(), "split: {is_split}");
        assert!(is_woken, "split: {is_split}");
    }
}

/// The poller of the sends has a driver, that of the receives has none, or has lost it. A receive fails. The future
/// is polled only when it is woken.
#[test]
fn who_waits_for_room_sees_a_receive_fail_at_a_poller_without_a_driver() {
    for had_driver in [false, true] {
        let (_fabric, domain) = support::own_device!();
        let Apart { domain, at_sends, at_receives, sender, mut receiver, mut peer } = Apart::new(domain);
        let mut driver = at_sends.driver().unwrap();
        let other = had_driver.then(|| at_receives.driver().unwrap());
        let shared = sender.into_shared();
        let (woken, mut room) = waits(&shared);
        let waker = Waker::from(Arc::clone(&woken));
        drop(other);
        let mut seen = woken.0.load(Ordering::SeqCst);
        // Dropping a driver wakes the waiting tasks. Do what a woken task does: poll once more.
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
        peer.post_send(long(&domain)).unwrap();
        // As in a runtime, the future is polled only after somebody has woken it.
        assert!((0..50).any(|_| {
            takes_turns(&mut driver);
            let before = mem::replace(&mut seen, woken.0.load(Ordering::SeqCst));
            seen > before && room.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        }));
    }
}

/// A wait for room at two pollers that has ended leaves no waker at the poller of the receives, whose driver sleeps.
#[test]
fn a_wait_that_has_ended_leaves_no_waker_at_the_other_poller() {
    for has_waited in [false, true] {
        ends_without_a_trace(has_waited);
    }
}

fn ends_without_a_trace(has_waited: bool) {
    let (_fabric, domain) = support::own_device!();
    let Apart { domain, at_sends, at_receives, sender, mut receiver, mut peer } = Apart::new(domain);
    let _of_sends = at_sends.driver().unwrap();
    let of_receives = at_receives.driver().unwrap();
    let shared = sender.into_shared();
    let permit = block_on(shared.room()).unwrap();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut room = Box::pin(shared.room());
    if has_waited {
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(permit);
    let Poll::Ready(Ok(permit)) = room.as_mut().poll(&mut Context::from_waker(&waker)) else { panic!() };
    drop(permit);
    drop((room, waker));
    // Nobody waits any more, so the driver of the receives should sleep while messages come.
    let thread = thread::spawn(move || of_receives.run_on_thread().unwrap());
    assert!(support::eventually(|| at_receives.counters().turns > 0));
    let PollerCounters { turns: before, .. } = at_receives.counters();
    let mut messages = 0;
    for _ in 0..4 {
        receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
        peer.post_send(domain.buffer(8).unwrap()).unwrap();
        thread::sleep(Duration::from_millis(20));
        messages += usize::from(poll_once(&mut Box::pin(receiver.next())).is_ready());
    }
    let PollerCounters { turns: after, .. } = at_receives.counters();
    let kept = Arc::strong_count(&woken) - 1;
    drop((shared, receiver, at_sends, at_receives));
    let ends = support::eventually(|| thread.is_finished());
    assert!(ends, "the driver of the receives does not end");
    assert_eq!(kept, 0, "waited: {has_waited}, {messages} messages");
    // If a task has waited, the completion queue of the receives can still be armed. Then one message wakes the driver,
    // for one turn.
    assert!(after - before <= u64::from(has_waited), "{} turns for nobody", after - before);
}

/// A receiver that posts by itself keeps a message for its next call, since a waker has panicked. The program
/// closes the pair instead.
#[test]
fn a_message_that_is_kept_comes_out_of_closed() {
    let (fabric, domain) = support::own_device!();
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.completion_queue(16).unwrap();
    let poller = SharedPoller::new(poller);
    let mut driver = poller.driver().unwrap();
    let limits = Limits { sends: 1, receives: 4, ..Limits::default() };
    let pair = || domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let (left, mut right) = connect_to_each_other(&domain, pair(), pair(), &ConnectAttributes::default());
    let (sender, mut receiver) = poller.split(left).unwrap();
    let classes = vec![SizeClass { len_bytes: 8, count: 2 }];
    let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() }).unwrap();
    receiver.refill_from(&pool, 8, 1).unwrap();
    let shared = sender.into_shared();
    mem::forget(block_on(shared.room()).unwrap());
    let panicking = Waker::from(Arc::new(Panicking));
    let mut room = Box::pin(shared.room());
    assert!(room.as_mut().poll(&mut Context::from_waker(&panicking)).is_pending());
    right.post_send(domain.buffer(8).unwrap()).unwrap();
    for _ in 0..4 {
        let _ = catch_unwind(AssertUnwindSafe(|| takes_turns(&mut driver)));
    }
    fabric.inject(Fault::ReceiveKept { errno: libc::EINVAL });
    let panicked = catch_unwind(AssertUnwindSafe(|| poll_once(&mut Box::pin(receiver.next())).is_ready()));
    assert!(panicked.is_err(), "set up");
    drop(room);
    let sender = shared.try_into_sender().unwrap();
    let closed = sender.close(receiver).unwrap().now();
    let messages = closed.receives.into_iter().filter_map(|found| found.check().ok()).count();
    assert_eq!(messages, 1, "the message that no task has got");
}

/// Closings that have destroyed their pair and not ended. All pairs have the same number. A receive of the last one
/// fails.
#[test]
fn many_pairs_of_one_number_are_no_matter() {
    let fabric = Fabric::with_profile(Profile::Rxe);
    let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
    let domain = context.checked_domain().unwrap();
    let port = domain.context().active_port().unwrap();
    let [(qa, a), (qb, b), (qd, _d)] = [(); 3].map(|()| domain.completion_queue(64).unwrap());
    let [a, b] = [a, b].map(SharedPoller::new);
    let [_at_a, mut at_b] = [&a, &b].map(|poller| poller.driver().unwrap());
    let limits = Limits { sends: 1, receives: 1, ..Limits::default() };
    let attributes = ConnectAttributes::default();
    let panicking = Waker::from(Arc::new(Panicking));
    let mut number = None;
    let mut closings = Vec::new();
    let right = domain.reliable(&qd, &limits).unwrap().into_init(&port).unwrap();
    let mut right = Some(right);
    let mut rights = Vec::new();
    for at in 0..20 {
        let left = domain.reliable_on(&qa, &qb, &limits).unwrap().into_init(&port).unwrap();
        let peer = right.take().unwrap_or_else(|| domain.reliable(&qd, &limits).unwrap().into_init(&port).unwrap());
        let (left, mut peer) = connect_to_each_other(&domain, left, peer, &attributes);
        let same = *number.get_or_insert(left.number());
        assert_eq!(left.number(), same, "{at}");
        let (sender, mut receiver) = SharedPoller::split_on(&a, &b, left).unwrap();
        let shared = sender.into_shared();
        let permit = block_on(shared.room()).unwrap();
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut room = Box::pin(shared.room());
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        if at == 19 {
            receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
            peer.post_send(long(&domain)).unwrap();
            let polled = catch_unwind(AssertUnwindSafe(|| {
                for _ in 0..10 {
                    takes_turns(&mut at_b);
                }
            }));
            assert!(polled.is_ok(), "the driver panics");
            assert!(woken.0.load(Ordering::SeqCst) > 0);
            return;
        }
        drop((room, permit));
        let mut sender = shared.try_into_sender().unwrap();
        let mut sent = sender.send(Inline(b"")).unwrap();
        assert!(Pin::new(&mut sent).poll(&mut Context::from_waker(&panicking)).is_pending());
        fabric.inject(Fault::FlushWithheld);
        let mut closing = sender.close(receiver).unwrap().within(Duration::ZERO);
        assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut closing).is_ready())).is_err());
        fabric.heal();
        closings.push((closing, sent));
        rights.push(peer);
    }
}

/// An attack: a send and a receive are in flight at two pollers, and all is dropped in each order. No memory is freed
/// while its pair lives, and each is freed once.
#[test]
fn halves_at_two_pollers_free_their_memory_once_in_any_order_of_drops() {
    for order in 0..5 {
        let (_fabric, domain) = support::own_device!();
        let Apart { domain, at_sends, at_receives, mut sender, mut receiver, peer } = Apart::new(domain);
        let freed = Arc::new(AtomicUsize::new(0));
        let memory = || domain.register::<LocalWrite, _>(Foreign(Counted::new(8, &freed))).unwrap().split().1;
        receiver.post_receive(memory()).unwrap();
        // The peer has no receive, so the send stays in flight.
        drop(sender.send(memory()).unwrap());
        let shared = sender.into_shared();
        assert!(poll_once(&mut Box::pin(shared.room())).is_pending());
        assert_eq!(freed.load(Ordering::SeqCst), 0);
        let mut rest: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(at_sends), Box::new(at_receives), Box::new(shared), Box::new(receiver), Box::new(peer)];
        rest.rotate_left(order);
        rest.into_iter().for_each(drop);
        drop(domain);
        assert!(support::eventually(|| freed.load(Ordering::SeqCst) == 2), "order {order}");
    }
}

/// Uses the poller when it is dropped.
struct UsesOnDrop(SharedPoller<Checked>);
impl Drop for UsesOnDrop {
    fn drop(&mut self) {
        self.0.counters();
    }
}

/// The poller of the receives destroys a dropped pair. It then has the last handle of the other completion queue, which
/// owns the memory of the sends in flight. The drop of that memory is code of the program, so no lock is held then.
#[test]
fn the_completion_queue_of_the_sends_ends_without_a_lock() {
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let fabric = Fabric::with_profile(Profile::Mlx4);
        let domain = interlock::Context::open_on(&fabric, "soft0").unwrap().checked_domain().unwrap();
        let port = domain.context().active_port().unwrap();
        let (sends, at_sends) = domain.completion_queue(8).unwrap();
        let (receives, at_receives) = domain.completion_queue(64).unwrap();
        let at_receives = SharedPoller::new(at_receives);
        let mut driver = at_receives.driver().unwrap();
        let stock = domain.shared_receive_queue(&SharedLimits { receives: 8, ..SharedLimits::default() }).unwrap();
        let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
        let pair = stock.reliable_on(&sends, &receives, &limits).unwrap().into_init(&port).unwrap();
        let peer = domain.reliable(&receives, &limits).unwrap().into_init(&port).unwrap();
        let (mut pair, _peer) = connect_to_each_other(&domain, pair, peer, &ConnectAttributes::default());
        let memory = Foreign(Guarded::with(8, UsesOnDrop(at_receives.clone())));
        // The peer has no receive, so the send stays in flight.
        pair.post_send(domain.register::<LocalWrite, _>(memory).unwrap().split().1).unwrap();
        drop((pair, sends, at_sends));
        assert!(support::eventually(|| {
            takes_turns(&mut driver);
            format!("{fabric:?}").contains("completion_queues: 1")
        }));
        done.send(()).unwrap();
    });
    assert!(is_done.recv_timeout(support::PATIENCE).is_ok(), "the memory is dropped under the lock");
}

/// A shared poller keeps what must be dropped without its lock. A plain poller of the same queue keeps nothing.
#[test]
fn a_poller_after_a_shared_one_keeps_nothing() {
    let (_fabric, domain) = support::own_device!();
    let freed = Arc::new(AtomicUsize::new(0));
    let (queue, poller) = domain.completion_queue(64).unwrap();
    drop(SharedPoller::new(poller));
    let mut poller = queue.take_poller().unwrap();
    let mut stock = domain.shared_receive_queue(&SharedLimits { receives: 8, ..SharedLimits::default() }).unwrap();
    drop(stock.reliable(&queue, &Limits::default()).unwrap());
    let memory = domain.register::<LocalWrite, _>(Foreign(Counted::new(8, &freed))).unwrap().split().1;
    stock.post_receive(memory).unwrap();
    drop(stock);
    assert!(support::eventually(|| poller.poll().unwrap().is_none() && freed.load(Ordering::SeqCst) == 1));
}
