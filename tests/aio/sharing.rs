//! A sender for many tasks: room, permits, and the line of those who wait.

use super::*;

/// On a broken pair, a post with a permit fails with `Broken` at once, although other permits still keep room.
#[test]
fn a_permit_of_a_broken_pair_says_that_it_is_broken() {
    // This test needs a send that stays in flight, without a receive at the peer, until the pair goes to Error. On
    // iWARP such a send ends the connection instead.
    if lacks_need(Need::Waiting) {
        return;
    }
    let Tasks { domain, poller, left: (sender, receiver), right } = tasks!();
    let shared = sender.into_shared();
    let [first, second, third, kept] = [(); 4].map(|()| block_on(shared.room()).unwrap());
    let waiting = shared.with(|sender| sender.send(Inline(b""))).unwrap();
    shared.with(|sender| sender.abort()).unwrap();
    // The flushed request shows that the pair is broken.
    block_on(waiting).unwrap_err();
    let refused = first.with(|sender| sender.send(Inline(b""))).unwrap_err();
    assert!(matches!(refused, PostError::Broken { .. }), "{refused:?}");
    let refused = second.with(|sender| sender.post(WorkRequest::send(domain.buffer(8).unwrap()))).map(drop);
    assert!(matches!(refused, Err(PostError::Broken { .. })), "{refused:?}");
    let mut items = domain.buffers(2, 8).unwrap();
    let refused = third.with(|sender| sender.post_all(&mut items, WorkRequest::send)).map(drop).unwrap_err();
    assert!(matches!(refused.into_cause(), PostAllCause::Stopped(PostError::Broken { .. })));
    drop(kept);
    drop((shared, receiver, right, poller));
}

/// Many threads on one pair, with more requests than fit.
#[test]
fn many_tasks_share_a_sender() {
    let tasks = tasks!();
    let driver = tasks.drive();
    let (region, remote) = target(&tasks.domain);
    let Tasks { domain, poller, left: (sender, receiver), right } = tasks;
    let shared = sender.into_shared();
    let rounds = if cfg!(miri) { 5 } else { 300 };
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                block_on(async {
                    let mut buffer = domain.buffer(8).unwrap();
                    for _ in 0..rounds {
                        let permit = shared.room().await.unwrap();
                        buffer = permit.with(|sender| sender.write(buffer, &remote)).unwrap().await.unwrap();
                    }
                });
            });
        }
    });
    let sender = shared.try_into_sender().unwrap();
    assert_eq!((sender.in_flight(), sender.free()), (0, 8));
    drop((sender, receiver, right, poller, domain, region));
    driver.join().unwrap();
}

#[test]
fn room_is_promised_in_turn_and_not_overtaken() {
    let tasks = tasks!();
    let (region, remote) = target(&tasks.domain);
    let Tasks { domain, poller, left: (sender, receiver), right } = tasks;
    let write = |sender: &mut LentSender<'_, _>| sender.write(domain.buffer(8).unwrap(), &remote);
    let shared = sender.into_shared();
    // Permits take all the room, and two more tasks wait for room.
    let mut permits: Vec<_> = (0..8).map(|_| block_on(shared.room()).unwrap()).collect();
    let (mut first, mut second) = (Box::pin(shared.room()), Box::pin(shared.room()));
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    assert!(matches!(shared.with(write), Err(interlock::PostError::QueueFull(_))), "a post overtakes nobody");
    permits.pop();
    assert!(poll_once(&mut second).is_pending(), "the first one is first");
    drop(first);
    let Poll::Ready(Ok(permit)) = poll_once(&mut second) else { panic!("the next one is first now") };
    let posted = permit.with(write).unwrap();
    block_on(posted).unwrap();
    drop(second);
    for permit in permits {
        block_on(permit.with(write).unwrap()).unwrap();
    }
    block_on(shared.with(write).unwrap()).unwrap();
    drop((receiver, right, poller, region));
}

/// Every wait for room ends when the pair breaks, also if all its requests were only flushed, so that none has failed
/// by itself.
#[test]
fn a_wait_for_room_ends_when_the_pair_is_broken() {
    // This test needs sends that stay in flight, without receives at the peer, until the pair goes to Error. On iWARP
    // the first such send ends the connection, and soft iWARP never completes requests that are posted after that.
    if lacks_need(Need::Waiting) {
        return;
    }
    let tasks = tasks!();
    let driver = tasks.drive();
    let Tasks { domain, poller, left: (mut sender, receiver), right } = tasks;
    let posted: Vec<_> = (0..8).map(|_| sender.send(domain.buffer(8).unwrap()).unwrap()).collect();
    sender.abort().unwrap();
    let shared = sender.into_shared();
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let shared = shared.clone();
            thread::spawn(move || drop(block_on(shared.room()).unwrap()))
        })
        .collect();
    for posted in posted {
        let status = block_on(posted).unwrap_err().into_failure().unwrap().status;
        assert!(matches!(status, Status::Flushed | Status::RnrRetryExceeded), "{status}");
    }
    for wait in waits {
        wait.join().unwrap();
    }
    let mut sender = shared.try_into_sender().unwrap();
    block_on(sender.room()).unwrap();
    drop((sender, receiver, right, poller, domain));
    driver.join().unwrap();
}

/// One permit is kept for a long time. Meanwhile other requests complete, and their room comes back.
#[test]
fn room_that_comes_back_goes_to_the_first_in_the_line() {
    let tasks = tasks!();
    let driver = tasks.drive();
    let (region, remote) = target(&tasks.domain);
    let Tasks { domain, poller, left: (sender, receiver), right } = tasks;
    let shared = sender.into_shared();
    let kept = block_on(shared.room()).unwrap();
    let wakes = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let posted: Vec<_> =
        (0..7).map(|_| shared.with(|sender| sender.write(domain.buffer(8).unwrap(), &remote)).unwrap()).collect();
    let mut wait = Box::pin(shared.room());
    let first = wait.as_mut().poll(&mut Context::from_waker(&waker));
    if first.is_pending() {
        for posted in posted {
            block_on(posted).unwrap();
        }
        // The driver wakes only after it has settled the completion, so the post above can be ready before the wake.
        assert!(support::eventually(|| wakes.0.load(Ordering::Relaxed) > 0), "seven requests have completed");
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }
    drop((first, wait, kept));
    drop((shared, receiver, right, poller, region, domain));
    driver.join().unwrap();
}

/// `post_all` takes no room that was promised to permits.
#[test]
fn a_vector_of_posts_overtakes_nobody() {
    let tasks = tasks!();
    let (region, remote) = target(&tasks.domain);
    let Tasks { domain, poller, left: (sender, receiver), right } = tasks;
    let shared = sender.into_shared();
    let permits: Vec<_> = (0..3).map(|_| block_on(shared.room()).unwrap()).collect();
    let mut buffers = domain.buffers(8, 8).unwrap();
    let posted =
        shared.with(|sender| sender.post_all(&mut buffers, |buffer| WorkRequest::write(buffer, &remote))).unwrap();
    assert_eq!((posted.len(), buffers.len()), (5, 3));
    for permit in permits {
        drop(permit.with(|sender| sender.write(domain.buffer(8).unwrap(), &remote)).unwrap());
    }
    assert_eq!(block_on(posted).unwrap().len(), 5);
    drop((shared, receiver, right, poller, region));
}

/// The queue is full. A request of another task completes, and the first in the line is woken.
#[test]
fn the_first_in_the_line_is_woken_when_a_request_completes() {
    if lacks_need(Need::Waiting) {
        return;
    }
    let Tasks { domain, poller, left: (mut sender, _receiver), right: (_other, mut peer) } =
        Tasks::new(context().checked_domain().unwrap(), 1);
    let mut driver = poller.driver().unwrap();
    // The peer has no receive yet, so this send stays in flight and the queue is full.
    let sent = sender.send(domain.buffer(8).unwrap()).unwrap();
    let shared = sender.into_shared();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut room = Box::pin(shared.room());
    assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(matches!(shared.with(|sender| sender.send(Inline(b""))), Err(PostError::QueueFull(_))));
    peer.post_receive(domain.buffer(8).unwrap()).unwrap();
    driver.block_on(sent).unwrap().unwrap();
    assert!(woken.0.load(Ordering::SeqCst) > 0, "the first in the line is woken");
    assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

/// A permit is room for one post. A second post with it must not go before those who wait in the line.
#[test]
fn a_second_post_with_a_permit_overtakes_nobody() {
    let tasks = tasks!();
    let (region, remote) = target(&tasks.domain);
    let Tasks { domain, poller, left: (sender, receiver), right } = tasks;
    let shared = sender.into_shared();
    let permit = block_on(shared.room()).unwrap();
    let others: Vec<_> = (0..7).map(|_| block_on(shared.room()).unwrap()).collect();
    let mut waits = Box::pin(shared.room());
    assert!(poll_once(&mut waits).is_pending());
    // While `waits` is in the line, all room that this drop gives back is kept for the line. So `permit` allows only
    // one post.
    drop(others);
    let (first, second) = permit.with(|sender| {
        assert_eq!(sender.free(), 1);
        let mut write = || sender.write(domain.buffer(8).unwrap(), &remote);
        (write().unwrap(), write())
    });
    assert!(matches!(second, Err(PostError::QueueFull(_))));
    assert!(poll_once(&mut waits).is_ready());
    block_on(first).unwrap();
    drop(waits);
    drop((shared, receiver, right, poller, region));
}
