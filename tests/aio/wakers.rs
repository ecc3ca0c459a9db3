//! Wakers that panic, or that use the library: they cost nobody else anything.

use super::*;
use interlock::aio::SharedSender;
use std::time::Instant;

#[test]
fn a_waker_that_panics_keeps_nobody_else_asleep() {
    let mut tasks = tasks!();
    let mut driver = tasks.poller.driver().unwrap();
    let (panicking, woken) = (Waker::from(Arc::new(Panicking)), Arc::new(Count::default()));
    let counting = Waker::from(Arc::clone(&woken));
    for receiver in [&mut tasks.left.1, &mut tasks.right.1] {
        receiver.post_receive(tasks.domain.buffer(64).unwrap()).unwrap();
    }
    assert!(tasks.left.1.poll_next(&mut Context::from_waker(&panicking)).is_pending());
    assert!(tasks.right.1.poll_next(&mut Context::from_waker(&counting)).is_pending());
    let to_right = tasks.left.0.send(tasks.buffer(b"r")).unwrap();
    let to_left = tasks.right.0.send(tasks.buffer(b"l")).unwrap();
    let both = async { (to_right.await.is_ok(), to_left.await.is_ok()) };
    let polled = catch_unwind(AssertUnwindSafe(|| driver.block_on(both)));
    // Either `block_on` above or `poll_once` below gets the panic of the left receiver's waker. In both cases the
    // receiver of `tasks.right` is woken.
    drop(polled);
    assert!(support::eventually(|| {
        let _ = catch_unwind(AssertUnwindSafe(|| poll_once(&mut pin!(tasks.left.1.next()))));
        woken.0.load(Ordering::SeqCst) == 1
    }));
    drop(driver);
}

/// The first in the line gets a permit and wakes the next one.
#[test]
fn a_waker_in_the_line_that_panics_costs_no_room() {
    if lacks_need(Need::Waiting) {
        return;
    }
    let Tasks { domain, poller, left, right } = Tasks::new(context().checked_domain().unwrap(), 2);
    let mut driver = poller.driver().unwrap();
    let ((mut sender, _receiver), (_other, mut peer)) = (left, right);
    // The peer has no receive yet, so these sends stay in flight and the queue is full.
    let sent = [(); 2].map(|()| sender.send(domain.buffer(8).unwrap()).unwrap());
    let shared = sender.into_shared();
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(shared.room()));
    assert!(poll_once(&mut first).is_pending());
    let panicking = Waker::from(Arc::new(Panicking));
    assert!(second.as_mut().poll(&mut Context::from_waker(&panicking)).is_pending());
    for posted in sent {
        peer.post_receive(domain.buffer(8).unwrap()).unwrap();
        driver.block_on(posted).unwrap().unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut first).is_ready())).is_err());
    drop((first, second));
    let [one, two] = [(); 2].map(|()| poll_once(&mut Box::pin(shared.room())));
    assert!(one.is_ready() && two.is_ready());
}

/// Two connected pairs on the soft device, where requests complete at once, and two more that are not split. The left
/// receiver waits with a waker that panics, and its message is in the completion queue. Whoever polls next panics.
fn about_to_panic() -> (Tasks<Checked>, Driver<Checked>, [QueuePair<Checked, ReadyToSend>; 2]) {
    let context = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap();
    let domain = context.checked_domain().unwrap();
    let (queue, poller) = domain.completion_queue(256).unwrap();
    let poller = SharedPoller::new(poller);
    let limits = Limits { sends: 8, receives: 8, ..Limits::default() };
    let port = domain.context().active_port().unwrap();
    let pair = || domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let both = || connect_to_each_other(&domain, pair(), pair(), &ConnectAttributes::default());
    let ((left, right), others) = (both(), both());
    let [mut left, mut right] = [left, right].map(|pair| poller.split(pair).unwrap());
    // The driver is made, but nobody runs it. So it does not poll before the test does.
    let driver = poller.driver().unwrap();
    left.1.post_receive(domain.buffer(8).unwrap()).unwrap();
    let panicking = Waker::from(Arc::new(Panicking));
    assert!(left.1.poll_next(&mut Context::from_waker(&panicking)).is_pending());
    mem::forget(right.0.send(Inline(b"")).unwrap());
    (Tasks { domain, poller, left, right }, driver, others.into())
}

#[test]
fn a_waker_that_panics_loses_no_answer_of_who_polled() {
    for fails in [false, true] {
        let (mut tasks, _driver, _others) = about_to_panic();
        let (_region, remote) = target(&tasks.domain);
        let remote = if fails { RemoteRegion::of_peer(8, 8, 8).unwrap() } else { remote };
        let mut posted = tasks.left.0.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut posted).is_ready())).is_err());
        assert!(support::eventually(|| match poll_once(&mut posted) {
            Poll::Ready(answer) => fails != answer.is_ok(),
            Poll::Pending => false,
        }));
    }
}

#[test]
fn a_waker_that_panics_loses_no_message_of_who_polled() {
    let (mut tasks, _driver, _others) = about_to_panic();
    for byte in *b"ab" {
        tasks.right.1.post_receive(tasks.domain.buffer(8).unwrap()).unwrap();
        mem::forget(tasks.left.0.send(tasks.buffer(&[byte])).unwrap());
    }
    assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut pin!(tasks.right.1.next())).is_ready())).is_err());
    for byte in *b"ab" {
        let Poll::Ready(Some(Ok(message))) = poll_once(&mut pin!(tasks.right.1.next())) else { panic!("no message") };
        assert_eq!(message.into_received().unwrap()[..], [byte]);
    }
}

#[test]
fn a_waker_that_panics_loses_nothing_of_a_batch_of_who_polled() {
    let (mut tasks, _driver, _others) = about_to_panic();
    let (_region, remote) = target(&tasks.domain);
    let mut items = tasks.domain.buffers(3, 8).unwrap();
    let mut posted = tasks.left.0.post_all(&mut items, |buffer| WorkRequest::write(buffer, &remote)).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut posted).is_ready())).is_err());
    let Poll::Ready(Ok(buffers)) = poll_once(&mut posted) else { panic!("no answer") };
    assert_eq!(buffers.len(), 3);
}

#[test]
fn a_waker_that_panics_while_a_batch_is_dropped_loses_nothing_of_it() {
    let (mut tasks, _driver, _others) = about_to_panic();
    let (_region, remote) = target(&tasks.domain);
    let mut items = tasks.domain.buffers(3, 8).unwrap();
    let posted = tasks.left.0.post_all(&mut items, |buffer| WorkRequest::write(buffer, &remote)).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(posted))).is_err());
    assert!(support::eventually(|| tasks.left.0.counters().strays == 3));
}

#[test]
fn a_waker_that_panics_while_a_pair_is_split_leaves_no_lane_behind() {
    let (mut tasks, _driver, [mut pair, _peer]) = about_to_panic();
    let freed = Arc::new(AtomicUsize::new(0));
    // The peer has no receive, so the split finds two requests in flight.
    for _ in 0..2 {
        let memory = tasks.domain.register::<LocalWrite, _>(Foreign(Counted::new(8, &freed))).unwrap().split().1;
        pair.post_send(memory).unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| drop(tasks.poller.split(pair)))).is_err());
    assert!(support::eventually(|| {
        drop(poll_once(&mut tasks.left.0.send(Inline(b"")).unwrap()));
        freed.load(Ordering::SeqCst) == 2
    }));
}

/// The first in the line gives up. Its waker panics when it is dropped. The next one is woken all the same.
#[test]
fn a_waker_whose_drop_panics_keeps_nobody_in_the_line() {
    let Tasks { poller, left: (sender, _receiver), right: _right, .. } =
        Tasks::new(context().checked_domain().unwrap(), 1);
    let _driver = poller.driver().unwrap();
    let shared = sender.into_shared();
    let kept = block_on(shared.room()).unwrap();
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(shared.room()));
    let (panics, woken) = (Arc::new(AtomicUsize::new(0)), Arc::new(Count::default()));
    let bad = Waker::from(Arc::new(BadDrop(Arc::clone(&panics))));
    assert!(first.as_mut().poll(&mut Context::from_waker(&bad)).is_pending());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // After this drop, only the line of waiting tasks holds a clone of `bad`.
    drop(bad);
    panics.store(1, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(first))).is_err());
    panics.store(0, Ordering::SeqCst);
    drop(kept);
    assert!(woken.0.load(Ordering::SeqCst) > 0);
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

/// A waker that uses a shared sender when it is woken, as an executor may that polls its tasks in `wake`.
struct Uses(SharedSender<Checked>);

impl Wake for Uses {
    fn wake(self: Arc<Self>) {
        self.0.with(|sender| sender.free());
    }
}

/// `post_all` has posted one request and refuses the next, so it abandons the first, and that wakes a reader. The
/// reader's waker uses the sender. With the lock held, this would wait for ever.
#[test]
fn a_lent_sender_wakes_nobody_under_its_lock() {
    for aborts in [false, true] {
        let context = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap();
        let Tasks { domain, poller, left: (sender, mut receiver), right: (mut peer, _other) } =
            Tasks::new(context.checked_domain().unwrap(), 8);
        let (_region, remote) = target(&domain);
        let _driver = poller.driver().unwrap();
        let shared = sender.into_shared();
        receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
        let waker = Waker::from(Arc::new(Uses(shared.clone())));
        assert!(receiver.poll_next(&mut Context::from_waker(&waker)).is_pending());
        mem::forget(peer.send(Inline(b"")).unwrap());
        let mut items = domain.buffers(2, 8).unwrap();
        let is_refused = shared.with(|sender| {
            let short = remote.slice(0..4).unwrap();
            let mut targets = [remote, short].into_iter();
            items.iter_mut().for_each(|buffer| buffer.set_len(8).unwrap());
            let result =
                sender.post_all(&mut items, |buffer| WorkRequest::write(buffer, &targets.next().unwrap())).map(drop);
            if aborts {
                sender.abort().unwrap();
            }
            result.is_err()
        });
        assert!(is_refused);
    }
}

/// The device does not flush, so the end of the pair at the deadline answers its send. The waker of the send panics.
/// The close goes on with the next poll, and gives all buffers.
#[test]
fn a_waker_that_panics_while_a_pair_is_closed_costs_no_buffer() {
    let (fabric, domain) = support::own_device!();
    let Tasks { domain, poller, left: (mut sender, mut receiver), right: _right } = Tasks::new(domain, 128);
    let _driver = poller.driver().unwrap();
    // Completions are settled at most 64 at a time, so closing a pair with these receives takes more than one step.
    for _ in 0..100 {
        receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
    }
    let panicking = Waker::from(Arc::new(Panicking));
    // The peer has no receive, so this send does not complete.
    let mut sent = sender.send(Inline(b"")).unwrap();
    assert!(Pin::new(&mut sent).poll(&mut Context::from_waker(&panicking)).is_pending());
    fabric.inject(Fault::FlushWithheld);
    let begin = Instant::now();
    let mut closing = sender.close(receiver).unwrap().within(Duration::ZERO);
    assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut closing).is_ready())).is_err());
    let Poll::Ready(closed) = poll_once(&mut closing) else { panic!("the pair is not closed") };
    // The pair can have drained only if the close took 20 ms or more: then the library moves the pair to Error again,
    // and the device flushes.
    assert!(!closed.has_drained || begin.elapsed() >= Duration::from_millis(20));
    assert_eq!(closed.into_buffers().len(), 100);
    assert!(poll_once(&mut sent).is_ready());
}

/// The completion queue fails in the turn in which a waker panics. Whoever else waits is woken nevertheless.
#[test]
fn a_waker_that_panics_while_the_queue_fails_keeps_nobody_asleep() {
    let fabric = Fabric::new();
    let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
    let mut tasks = Tasks::new(context.checked_domain().unwrap(), 8);
    let mut driver = tasks.poller.driver().unwrap();
    for receiver in [&mut tasks.left.1, &mut tasks.right.1] {
        receiver.post_receive(tasks.domain.buffer(64).unwrap()).unwrap();
    }
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let panicking = Waker::from(Arc::new(Panicking));
    assert!(tasks.left.1.poll_next(&mut Context::from_waker(&panicking)).is_pending());
    assert!(tasks.right.1.poll_next(&mut Context::from_waker(&waker)).is_pending());
    mem::forget(tasks.right.0.send(Inline(b"")).unwrap());
    fabric.inject(Fault::Overrun { device: "soft0".to_owned() });
    let turned = catch_unwind(AssertUnwindSafe(|| drop(driver.block_on(std::future::pending::<()>()))));
    assert!(turned.is_err(), "the waker panics");
    drop(driver);
    assert!(woken.0.load(Ordering::SeqCst) > 0, "the right receiver must learn that the queue failed");
}

/// A receiver that posts by itself takes a message, and its next post is uncertain. That wakes; a waker panics.
#[test]
fn a_waker_that_panics_after_an_uncertain_refill_loses_no_message() {
    let fabric = Fabric::new();
    let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
    let Tasks { domain, poller, left: (sender, mut receiver), right: (mut peer, _other) } =
        Tasks::new(context.checked_domain().unwrap(), 1);
    let _driver = poller.driver().unwrap();
    let classes = vec![SizeClass { len_bytes: 8, count: 2 }];
    let options = PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() };
    let pool = domain.pool(&options).unwrap();
    receiver.refill_from(&pool, 8, 1).unwrap();
    let shared = sender.into_shared();
    mem::forget(block_on(shared.room()).unwrap());
    let mut room = Box::pin(shared.room());
    let panicking = Waker::from(Arc::new(Panicking));
    assert!(room.as_mut().poll(&mut Context::from_waker(&panicking)).is_pending());
    let mut text = domain.buffer(8).unwrap();
    text.write(b"message").unwrap();
    mem::forget(peer.send(text).unwrap());
    fabric.inject(Fault::ReceiveKept { errno: libc::EINVAL });
    assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut pin!(receiver.next())).is_ready())).is_err());
    let Poll::Ready(Some(Ok(message))) = poll_once(&mut pin!(receiver.next())) else { panic!("the message is lost") };
    assert_eq!(message.into_received().unwrap()[..], *b"message");
}

/// `post_all` of a sender of one task refuses a request, which comes back in the error. Its end abandons the
/// requests before, and so wakes; a waker panics.
#[test]
fn a_waker_that_panics_loses_no_memory_of_a_refused_request() {
    let fabric = Fabric::new();
    let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
    let Tasks { domain, poller, left: (mut sender, mut receiver), right: (mut peer, _other) } =
        Tasks::new(context.checked_domain().unwrap(), 8);
    let (_region, remote) = target(&domain);
    let _driver = poller.driver().unwrap();
    receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
    let panicking = Waker::from(Arc::new(Panicking));
    assert!(receiver.poll_next(&mut Context::from_waker(&panicking)).is_pending());
    let sent = peer.send(Inline(b"")).unwrap();
    let freed = Arc::new(AtomicUsize::new(0));
    let memory = || domain.register::<LocalWrite, _>(Foreign(Counted::new(8, &freed))).unwrap().split().1;
    let mut items = vec![memory(), memory()];
    items.iter_mut().for_each(|buffer| buffer.set_len(8).unwrap());
    let mut targets = [remote, remote.slice(0..4).unwrap()].into_iter();
    let result = catch_unwind(AssertUnwindSafe(|| {
        sender.post_all(&mut items, |buffer| WorkRequest::write(buffer, &targets.next().unwrap())).map(drop)
    }));
    assert!(result.is_err());
    drop((sent, items, sender, receiver, peer, _other, _driver, poller, _region));
    drop(domain);
    drop(context);
    assert_eq!(freed.load(Ordering::SeqCst), 2, "the memory of the refused request is leaked");
}

/// The loan wakes when it ends, and what the closure returned is there already.
#[test]
fn a_waker_that_panics_loses_no_result_of_a_call_of_with() {
    let context = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap();
    let Tasks { domain, poller, left: (sender, _receiver), right: _right } =
        Tasks::new(context.checked_domain().unwrap(), 1);
    let _driver = poller.driver().unwrap();
    let shared = sender.into_shared();
    mem::forget(block_on(shared.room()).unwrap());
    let panicking = Waker::from(Arc::new(Panicking));
    let mut room = Box::pin(shared.room());
    assert!(room.as_mut().poll(&mut Context::from_waker(&panicking)).is_pending());
    let classes = vec![SizeClass { len_bytes: 8, count: 1 }];
    let options = PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() };
    let pool = domain.pool(&options).unwrap();
    let buffer = pool.try_take(8).unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        shared.with(|sender| {
            sender.abort().unwrap();
            sender.send(buffer).unwrap_err()
        })
    }));
    assert!(result.map(drop).is_err());
    assert!(pool.try_take(8).is_ok(), "the buffer of the pool is leaked");
}

/// The drop of this waker panics while the test wants that.
struct BadDrop(Arc<AtomicUsize>);
impl Wake for BadDrop {
    fn wake(self: Arc<Self>) {}
}
impl Drop for BadDrop {
    fn drop(&mut self) {
        assert_eq!(self.0.load(Ordering::SeqCst), 0, "the drop of this waker panics");
    }
}

/// The drop of this waker uses the shared sender, as the drop of a task may that only its wakers own.
struct DropUses(SharedSender<Checked>);
impl Wake for DropUses {
    fn wake(self: Arc<Self>) {}
}
impl Drop for DropUses {
    fn drop(&mut self) {
        self.0.with(|sender| sender.free());
    }
}

/// A wait gets its permit while the line still has an old waker of the wait. That waker is dropped without the lock.
#[test]
fn the_last_waker_of_a_wait_in_the_line_is_dropped_without_the_lock() {
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let context = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap();
        let Tasks { domain, poller, left: (sender, _receiver), right: (_peer, mut other) } =
            Tasks::new(context.checked_domain().unwrap(), 1);
        let _driver = poller.driver().unwrap();
        let shared = sender.into_shared();
        // The peer has no receive yet, so this send stays in flight.
        let mut sent = shared.with(|sender| sender.send(Inline(b""))).unwrap();
        let mut room = Box::pin(shared.room());
        let waker = Waker::from(Arc::new(DropUses(shared.clone())));
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        other.post_receive(domain.buffer(8).unwrap()).unwrap();
        assert!(support::eventually(|| poll_once(&mut sent).is_ready()));
        assert!(poll_once(&mut room).is_ready());
        done.send(()).unwrap();
    });
    assert!(is_done.recv_timeout(support::PATIENCE).is_ok(), "the waker is dropped under the lock");
}

/// The same, with a waker whose drop panics. The next one in the line gets the room.
#[test]
fn the_last_waker_of_a_wait_in_the_line_that_panics_keeps_nobody_asleep() {
    let context = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap();
    let Tasks { domain, poller, left: (sender, _receiver), right: (_peer, mut other) } =
        Tasks::new(context.checked_domain().unwrap(), 1);
    let _driver = poller.driver().unwrap();
    let shared = sender.into_shared();
    let mut sent = shared.with(|sender| sender.send(Inline(b""))).unwrap();
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(shared.room()));
    let (panics, woken) = (Arc::new(AtomicUsize::new(0)), Arc::new(Count::default()));
    let bad = Waker::from(Arc::new(BadDrop(Arc::clone(&panics))));
    assert!(first.as_mut().poll(&mut Context::from_waker(&bad)).is_pending());
    drop(bad);
    assert!(second.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
    other.post_receive(domain.buffer(8).unwrap()).unwrap();
    assert!(support::eventually(|| poll_once(&mut sent).is_ready()));
    panics.store(1, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(poll_once(&mut first)))).is_err());
    panics.store(0, Ordering::SeqCst);
    drop(first);
    assert!(woken.0.load(Ordering::SeqCst) > 0, "the second in the line sleeps for ever");
}

/// The permit of a wait whose last waker is in the lane, and panics when it is dropped.
#[test]
fn a_waker_in_the_lane_whose_drop_panics_costs_no_room() {
    let Tasks { poller, left: (sender, _receiver), right: _right, .. } =
        Tasks::new(context().checked_domain().unwrap(), 1);
    let _driver = poller.driver().unwrap();
    let shared = sender.into_shared();
    let kept = block_on(shared.room()).unwrap();
    let mut first = Box::pin(shared.room());
    let panics = Arc::new(AtomicUsize::new(0));
    let bad = Waker::from(Arc::new(BadDrop(Arc::clone(&panics))));
    assert!(first.as_mut().poll(&mut Context::from_waker(&bad)).is_pending());
    drop(bad);
    drop(kept);
    panics.store(1, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(poll_once(&mut first)))).is_err());
    panics.store(0, Ordering::SeqCst);
    drop(first);
    assert!(poll_once(&mut Box::pin(shared.room())).is_ready(), "the permit is leaked");
}

/// Closes a pair, and drops the future while the drop of its waker panics. False if the pair was closed at once: if the
/// thread is slow, the device is asked to flush once more before the poll, and does. Then nobody waits.
fn closes_now(has_deadline: bool) -> bool {
    let fabric = Fabric::new();
    let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
    let tasks = Tasks::new(context.checked_domain().unwrap(), 8);
    let pool = pool_of(&tasks, 4);
    let Tasks { poller, left: (sender, mut receiver), right: _right, .. } = tasks;
    let _driver = poller.driver().unwrap();
    for _ in 0..4 {
        receiver.post_receive(pool.try_take(8).unwrap()).unwrap();
    }
    fabric.inject(Fault::FlushWithheld);
    let mut closing = sender.close(receiver).unwrap();
    if has_deadline {
        closing = closing.within(Duration::from_secs(60));
    }
    let panics = Arc::new(AtomicUsize::new(0));
    let bad = Waker::from(Arc::new(BadDrop(Arc::clone(&panics))));
    let polled = Pin::new(&mut closing).poll(&mut Context::from_waker(&bad));
    if polled.is_ready() {
        return false;
    }
    drop(bad);
    panics.store(1, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(closing.now()))).is_err());
    assert_eq!(free(&pool), 4, "what was closed is leaked");
    true
}

fn close_now(has_deadline: bool) {
    // Under Miri, each try can be too slow.
    assert!((0..20).any(|_| closes_now(has_deadline)) || cfg!(miri), "no closing waits");
}

#[test]
fn a_waker_of_a_deadline_whose_drop_panics_costs_no_buffer_of_a_closed_pair() {
    close_now(true);
}

#[test]
fn a_waker_of_a_kick_whose_drop_panics_costs_no_buffer_of_a_closed_pair() {
    close_now(false);
}

/// The lease is held while a future runs. The timer still has a waker when the future is ready.
#[test]
fn a_waker_of_a_held_lease_whose_drop_panics_costs_no_memory() {
    let tasks = tasks!();
    let pool = pool_of(&tasks, 1);
    let lease =
        tasks.domain.lease::<interlock::RemoteWrite, _>(pool.try_take(8).unwrap(), Duration::from_secs(60)).unwrap();
    let mut polls = 0;
    let future = poll_fn(|_| {
        polls += 1;
        if polls == 1 { Poll::Pending } else { Poll::Ready(()) }
    });
    let mut held = Box::pin(lease.hold(&tasks.poller, Duration::from_secs(60), future));
    let panics = Arc::new(AtomicUsize::new(0));
    let bad = Waker::from(Arc::new(BadDrop(Arc::clone(&panics))));
    assert!(held.as_mut().poll(&mut Context::from_waker(&bad)).is_pending());
    drop(bad);
    panics.store(1, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(poll_once(&mut held)))).is_err());
    drop(held);
    assert_eq!(free(&pool), 1, "the memory of the lease is leaked");
}
