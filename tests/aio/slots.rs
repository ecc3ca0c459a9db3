//! Pairs that come, one after another, at one poller: what is left of one is never taken for another's.

use super::*;

/// A future may outlive its pair. When the future is dropped, another pair may have the slot of its pair.
#[test]
fn what_a_pair_has_left_is_no_stray_of_the_next_one() {
    let domain = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap().checked_domain().unwrap();
    let (queue, poller) = domain.completion_queue(64).unwrap();
    let poller = SharedPoller::new(poller);
    let (_region, remote) = target(&domain);
    let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
    let port = domain.context().active_port().unwrap();
    let pair = || domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    // New pairs reuse the slots in turn, so that each slot is given to send queues and also to receive queues.
    let mut old = Vec::new();
    for _ in 0..4 {
        let (left, right) = connect_to_each_other(&domain, pair(), pair(), &ConnectAttributes::default());
        let [(mut left, _receiver), (mut right, _other)] = [left, right].map(|pair| poller.split(pair).unwrap());
        for sender in [&mut left, &mut right] {
            let kept = sender.write(domain.buffer(8).unwrap(), &remote).unwrap();
            block_on(sender.write(domain.buffer(8).unwrap(), &remote).unwrap()).unwrap();
            old.push(kept);
        }
        old.truncate(2); // keeps only the futures of the first two pairs
        drop((left, _receiver, right, _other));
        while poller.take_unclaimed().is_some() {}
    }
    let (left, right) = connect_to_each_other(&domain, pair(), pair(), &ConnectAttributes::default());
    let [(mut left, _receiver), (mut right, _other)] = [left, right].map(|pair| poller.split(pair).unwrap());
    drop(old);
    for sender in [&mut left, &mut right] {
        assert!(sender.take_stray().is_none(), "of a pair that is gone");
        assert_eq!(sender.counters().strays, 0);
    }
}

/// Runs a function once, when it is woken.
struct OnWake<F>(std::sync::Mutex<Option<F>>);

impl<F: FnOnce() + Send> Wake for OnWake<F> {
    fn wake(self: Arc<Self>) {
        let f = self.0.lock().unwrap().take();
        f.into_iter().for_each(|f| f());
    }
}

/// Between the destroy of a pair and the end of its lanes, another thread may split a new pair, which gets the slots of
/// the old one. Here a waker does that, so the order is always the same.
#[test]
fn a_pair_that_is_split_while_another_one_is_closed_gets_its_completions() {
    let domain = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap().checked_domain().unwrap();
    let (queue, poller) = domain.completion_queue(256).unwrap();
    let poller = SharedPoller::new(poller);
    let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
    let port = domain.context().active_port().unwrap();
    let pair = || domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let attributes = ConnectAttributes::default();
    let (left, right) = connect_to_each_other(&domain, pair(), pair(), &attributes);
    let peer = pair();
    let driver = poller.driver().unwrap();
    let (mut sender, receiver) = poller.split(left).unwrap();
    // The peer has no receive, so this send does not complete.
    let mut posted = sender.send(domain.buffer(8).unwrap()).unwrap();
    let (give, take) = std::sync::mpsc::channel();
    thread::scope(|_| {
        let in_waker = {
            let (domain, queue, poller) = (domain.clone(), queue, poller.clone());
            move || {
                let new = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
                let (new, mut peer) = connect_to_each_other(&domain, new, peer, &attributes);
                (0..2).for_each(|_| _ = peer.post_receive(domain.buffer(8).unwrap()).unwrap());
                give.send((poller.split(new).unwrap(), peer)).unwrap();
            }
        };
        let waker = Waker::from(Arc::new(OnWake(std::sync::Mutex::new(Some(in_waker)))));
        assert!(Pin::new(&mut posted).poll(&mut Context::from_waker(&waker)).is_pending());
    });
    let closed = sender.close(receiver).unwrap().now();
    assert!(!closed.has_drained);
    let ((mut sender, mut receiver), mut peer) = take.try_recv().expect("the waker has run");
    drop(driver);
    receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
    let mut sent = sender.send(domain.buffer(8).unwrap()).unwrap();
    peer.post_send(domain.buffer(8).unwrap()).unwrap();
    let mut is_ready = [false; 2];
    for _ in 0..1000 {
        is_ready[0] |= !is_ready[0] && poll_once(&mut sent).is_ready();
        is_ready[1] |= !is_ready[1] && poll_once(&mut pin!(receiver.next())).is_ready();
    }
    assert_eq!(is_ready, [true; 2], "the send and the receive of the new pair");
    drop((peer, right));
}

/// A new pair that has the slot of an old pair may post before it is split. Its completions may come before the lane of
/// the old pair has ended. No future waits for these completions, so they are strays of the new pair.
#[test]
fn what_a_pair_posted_before_its_split_is_a_stray_although_another_one_is_being_closed() {
    let domain = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap().checked_domain().unwrap();
    let (queue, poller) = domain.completion_queue(256).unwrap();
    let poller = SharedPoller::new(poller);
    let (_region, remote) = target(&domain);
    let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
    let port = domain.context().active_port().unwrap();
    let pair = || domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let attributes = ConnectAttributes::default();
    let (left, right) = connect_to_each_other(&domain, pair(), pair(), &attributes);
    let (other, other_peer) = connect_to_each_other(&domain, pair(), pair(), &attributes);
    let peer = pair();
    let driver = poller.driver().unwrap();
    let (mut sender, receiver) = poller.split(left).unwrap();
    let (mut other, other_receiver) = poller.split(other).unwrap();
    // The peer has no receive, so this send does not complete.
    let mut posted = sender.send(domain.buffer(8).unwrap()).unwrap();
    let (give, take) = std::sync::mpsc::channel();
    let in_waker = {
        let (domain, queue, poller) = (domain.clone(), queue, poller.clone());
        move || {
            let new = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
            let (mut new, peer) = connect_to_each_other(&domain, new, peer, &attributes);
            new.post_write(domain.buffer(8).unwrap(), &remote).unwrap();
            // The polls of `other` also take the completion of that write from the device.
            while new.sends_in_flight() > 0 {
                block_on(other.write(domain.buffer(8).unwrap(), &remote).unwrap()).unwrap();
            }
            give.send((poller.split(new).unwrap(), peer, other)).unwrap();
        }
    };
    let waker = Waker::from(Arc::new(OnWake(std::sync::Mutex::new(Some(in_waker)))));
    assert!(Pin::new(&mut posted).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(sender.close(receiver).unwrap().now());
    let ((mut sender, receiver), peer, other) = take.try_recv().expect("the waker has run");
    assert!(sender.take_stray().is_some_and(|stray| stray.check().is_ok()), "the write from before the split");
    drop((driver, sender, receiver, peer, right, other, other_receiver, other_peer));
}

/// Requests and messages from before the split are not lost, and are not mistaken for those of another pair.
#[test]
fn requests_from_before_the_split_come_out() {
    let domain = context().checked_domain().unwrap();
    let (queue, poller) = domain.queue(64).unwrap();
    let poller = SharedPoller::new(poller);
    let (region, remote) = target(&domain);
    let port = domain.context().active_port().unwrap();
    let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
    let pairs = || {
        let pair = || domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        connect_to_each_other(&domain, pair(), pair(), &ConnectAttributes::default())
    };
    // `other` is split, and its polls take the completions of all pairs.
    let (other, _peer) = pairs();
    let (mut other, _receiver) = poller.split(other).unwrap();
    let mut polls = || block_on(other.write(domain.buffer(8).unwrap(), &remote).unwrap()).map(drop).unwrap();

    // A destroyed pair leaves a flushed receive, which nobody claims.
    let (mut gone, _peer_of_gone) = pairs();
    gone.post_receive(domain.buffer(16).unwrap()).unwrap();
    drop(gone);
    polls();
    // The next pairs can get the slots of the destroyed pair.
    for round in 0..4 {
        let (mut left, mut right) = pairs();
        right.post_receive(domain.buffer(64).unwrap()).unwrap();
        left.post_send(domain.buffer(8).unwrap()).unwrap();
        // In some rounds the requests complete before the split, in others later.
        if round % 2 == 0 {
            (0..4).for_each(|_| polls());
        }
        let (mut sender, _left_receiver) = poller.split(left).unwrap();
        let (_right_sender, mut receiver) = poller.split(right).unwrap();
        let message = block_on(receiver.next()).unwrap().unwrap().into_received().unwrap();
        assert_eq!(message.capacity(), 64, "the receive of this pair");
        let mut found = None;
        while found.is_none() {
            polls();
            found = sender.take_stray();
        }
        assert_eq!(buffer_of(found.unwrap()).capacity(), 8);
        assert_eq!(sender.counters().dropped_strays, 0);
    }
    drop(region);
}

/// A server has such pairs if its clients vanish while they connect.
#[test]
fn pairs_that_never_connect_keep_little_memory_and_none_of_a_pool() {
    let domain = context().checked_domain().unwrap();
    let (queue, poller) = domain.queue(16).unwrap();
    let poller = SharedPoller::new(poller);
    let (port, limits) = (domain.context().active_port().unwrap(), Limits { receives: 4, ..Limits::default() });
    let classes = vec![SizeClass { len_bytes: 64, count: 2 }];
    let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() }).unwrap();
    let mut driver = poller.driver().unwrap();
    for _ in 0..50 {
        let mut pair = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        for _ in 0..2 {
            pair.post_receive(pool.try_take(64).expect("those of the last pair are at home")).unwrap();
            pair.post_receive(domain.buffer(8).unwrap()).unwrap();
        }
        drop(pair);
        assert!(support::eventually(|| {
            takes_turns(&mut driver);
            pool.stats().classes[0].free == 2 && queue.room() == queue.capacity()
        }));
    }
    let kept = std::iter::from_fn(|| poller.take_unclaimed()).map(buffer_of).count();
    assert!((1..=queue.capacity() as usize).contains(&kept), "{kept}");
}
