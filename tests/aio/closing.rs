//! A pair closes, although some of its requests come out only with its end.

use super::*;
use interlock::UnreliableDatagram;
use interlock::aio::{Closed, Closing};
use interlock::number::Qkey;
use interlock::queue::Posting;
use interlock::transport::Transport;
use std::sync::mpsc;
use support::PATIENCE;

/// Awaits the closing on a thread of its own. If it hangs, the test fails, and the thread stays behind.
fn closed<B: Brand + Send + 'static, T: Transport + Send + 'static>(closing: Closing<B, T>) -> Closed<B> {
    let (done, closed) = mpsc::channel();
    thread::spawn(move || done.send(block_on(closing)));
    closed.recv_timeout(PATIENCE).expect("the pair closes")
}

/// A successful unsignalled send of a datagram pair is flushed by nothing.
#[test]
fn a_datagram_pair_closes_after_an_unsignalled_send() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.completion_queue(16).unwrap();
    let pair: QueuePair<_, _, UnreliableDatagram> =
        domain.datagram(&queue, &Limits::default()).unwrap().into_init(&port).unwrap().open().unwrap();
    let to = domain.recipient(&port, &pair.endpoint(), Qkey::USUAL).unwrap();
    let poller = SharedPoller::new(poller);
    let (mut sender, mut receiver) = poller.split(pair).unwrap();
    receiver.post_receive(domain.buffer(64).unwrap()).unwrap();
    let request = WorkRequest::send_to(domain.buffer(8).unwrap(), &to).unsignalled();
    drop(sender.post(request).map_err(|error| error.into_cause()).unwrap());
    let closed = closed(sender.close(receiver).unwrap());
    assert_eq!((closed.receives.len(), closed.strays.len()), (1, 1));
}

/// The device never got the request, so no completion brings it out. The pair posts no marker either: the completion of
/// the marker would report this request as a success.
#[test]
fn a_pair_closes_after_an_uncertain_post() {
    let fabric = Fabric::new();
    let domain = interlock::Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    let (queue, poller) = domain.completion_queue(16).unwrap();
    let port = domain.context().active_port().unwrap();
    let limits = Limits { posting: Posting::WorkRequestApi, ..Limits::default() };
    let pair = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let itself = pair.endpoint();
    let poller = SharedPoller::new(poller);
    let (mut sender, receiver) = poller.split(pair.connect(&itself).unwrap()).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::PostSend, after: 0, count: 1, errno: libc::ENOMEM });
    assert!(matches!(sender.send(domain.buffer(8).unwrap()), Err(PostError::Uncertain { .. })));
    let closed = closed(sender.close(receiver).unwrap());
    assert!(!closed.has_drained && closed.not_destroyed.is_none());
    assert_eq!(closed.into_buffers().len(), 1);
}

/// Only the poller may destroy this pair, and it waits for a request that never comes. The driver does not wait with
/// it: the end of the completion queue destroys the pair.
#[test]
fn the_driver_ends_after_an_uncertain_post() {
    let fabric = Fabric::with_profile(Profile::Adversary(0));
    let domain = interlock::Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    let (queue, poller) = domain.completion_queue(16).unwrap();
    let port = domain.context().active_port().unwrap();
    let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let itself = pair.endpoint();
    let poller = SharedPoller::new(poller);
    let (mut sender, receiver) = poller.split(pair.connect(&itself).unwrap()).unwrap();
    let driver = poller.driver().unwrap();
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(driver.run_on_thread()));
    fabric.inject(Fault::VerbFails { verb: Verb::PostSend, after: 0, count: 1, errno: libc::ENOMEM });
    assert!(matches!(sender.send(domain.buffer(8).unwrap()), Err(PostError::Uncertain { .. })));
    drop((sender, receiver, poller));
    ended.recv_timeout(PATIENCE).expect("the driver ends").unwrap();
    assert_eq!(queue.room(), 8, "nobody has waited for the request");
}

/// A pair that is in Error without anybody knowing takes a send, and the send never comes out. The pair waits for it,
/// and the driver does not. The memory stays away until the completion queue has ended.
#[test]
fn the_driver_ends_after_a_post_that_came_too_late() {
    [false, true].into_iter().for_each(late_post);
}

fn late_post(is_forgotten: bool) {
    let fabric = Fabric::with_profile(Profile::Irdma);
    let domain = interlock::Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    assert!(!domain.context().promises().late_posts_are_flushed());
    let (queue, poller) = domain.completion_queue(64).unwrap();
    let port = domain.context().active_port().unwrap();
    let pair = || domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let (mut left, right) = connect_to_each_other(&domain, pair(), pair(), &ConnectAttributes::default());
    // The peer refuses this write, and its device moves its own pair to Error.
    let (region, stale) = target(&domain);
    drop(region);
    left.post_write(domain.buffer(8).unwrap(), &stale).unwrap();
    let mut poller = poller;
    assert_eq!(poller.wait(PATIENCE).unwrap().check().unwrap_err().status, Status::RemoteAccess);
    let poller = SharedPoller::new(poller);
    let (mut sender, receiver) = poller.split(right).unwrap();
    let driver = poller.driver().unwrap();
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(driver.run_on_thread()));
    let freed = Arc::new(AtomicUsize::new(0));
    let memory = domain.register::<LocalWrite, _>(Foreign(Counted::new(8, &freed))).unwrap().split().1;
    let posted = sender.send(memory).unwrap();
    if is_forgotten {
        mem::forget(posted)
    } else {
        drop(posted)
    }
    // Drop `left` first. Once the driver has given up the pair of `sender`, it ends without waiting for a pair that is
    // dropped later.
    drop((left, sender, receiver, poller));
    ended.recv_timeout(PATIENCE).expect("the driver ends").unwrap();
    assert_eq!(queue.room(), 64 - 8, "nobody has waited for the request");
    assert_eq!(freed.load(Ordering::SeqCst), 0, "the device may still have the request");
    drop(queue);
    // A future that was forgotten keeps the queue, and with it the memory.
    let expected = usize::from(!is_forgotten);
    assert!(support::eventually(|| freed.load(Ordering::SeqCst) == expected), "forgotten: {is_forgotten}");
}

/// A receive whose post was uncertain may never come out. The reader learns of it by itself.
#[test]
fn the_reader_of_a_connection_learns_that_a_receive_was_uncertain() {
    // If a post fails on this device, the device may have queued the request all the same.
    let fabric = Fabric::with_profile(Profile::Adversary(0));
    let domain = interlock::Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    let Link { domain, poller, left, right: _right, .. } = Link::new(domain, 4);
    let poller = SharedPoller::new(poller);
    let mut connection = Connection::new(&poller, left).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::PostRecv, after: 0, count: 1, errno: libc::ENOMEM });
    assert!(matches!(connection.post_receive(domain.buffer(8).unwrap()), Err(PostError::Uncertain { .. })));
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(block_on(connection.next()).is_none()));
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true));
}

/// The pair breaks while the reader sleeps. On this device the receive is flushed only after another move to Error,
/// which the reader makes.
#[test]
fn the_reader_of_a_connection_wakes_when_the_pair_breaks() {
    let fabric = Fabric::manual();
    fabric.inject(Fault::FlushWithheld);
    let domain = interlock::Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    let Link { domain, poller, left, right: _right, .. } = Link::new(domain, 4);
    let poller = SharedPoller::new(poller);
    let mut driver = poller.driver().unwrap();
    let mut connection = Connection::new(&poller, left).unwrap();
    let (region, stale) = target(&domain);
    drop(region);
    connection.post_receive(domain.buffer(8).unwrap()).unwrap();
    drop(connection.write(domain.buffer(8).unwrap(), &stale).unwrap());
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(connection.poll_next(&mut context).is_pending());
    fabric.run();
    for _ in 0..20 {
        takes_turns(&mut driver);
    }
    assert!(woken.0.load(Ordering::SeqCst) > 0, "the reader is woken");
    assert!(support::eventually(|| {
        fabric.run();
        takes_turns(&mut driver);
        connection.poll_next(&mut context).is_ready()
    }));
}

/// A failed send of an unreliable connection stops only the sends. The receives go on.
#[test]
fn the_reader_of_an_unreliable_connection_goes_on_after_a_failed_send() {
    let fabric = Fabric::new();
    let domain = interlock::Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    let (queue, poller) = domain.completion_queue(32).unwrap();
    let port = domain.context().active_port().unwrap();
    let pair = || domain.unreliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let (left, right) = (pair(), pair());
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
    let poller = SharedPoller::new(poller);
    let mut driver = poller.driver().unwrap();
    let (mut left, mut right) = (Connection::new(&poller, left).unwrap(), Connection::new(&poller, right).unwrap());
    left.post_receive(domain.buffer(8).unwrap()).unwrap();
    fabric.inject(Fault::RequestsFail { count: 1 });
    assert!(driver.block_on(left.send(domain.buffer(8).unwrap()).unwrap()).unwrap().is_err());
    assert!(poll_once(&mut Box::pin(left.next())).is_pending(), "the connection has not ended");
    let mut word = domain.buffer(8).unwrap();
    word.write(b"word").unwrap();
    driver.block_on(right.send(word).unwrap()).unwrap().unwrap();
    let message = driver.block_on(left.next()).unwrap().unwrap().unwrap().into_received().unwrap();
    assert_eq!(&message[..], b"word");
}

/// An empty request brings an unsignalled send back. If the device refuses that request once, it is posted again.
#[test]
fn a_pair_closes_although_its_marker_is_refused_at_first() {
    let fabric = Fabric::new();
    let domain = interlock::Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap();
    let Link { domain, poller, left, mut right, .. } = Link::new(domain, 2);
    right.post_receive(domain.buffer(8).unwrap()).unwrap();
    let poller = SharedPoller::new(poller);
    let (mut sender, receiver) = poller.split(left).unwrap();
    drop(sender.post(WorkRequest::send(domain.buffer(8).unwrap()).unsignalled()).unwrap());
    fabric.inject(Fault::VerbFails { verb: Verb::PostSend, after: 0, count: 1, errno: libc::ENOMEM });
    let closed = closed(sender.close(receiver).unwrap());
    assert!(closed.has_drained);
    assert_eq!(closed.into_buffers().len(), 1);
}
