//! Receivers that post by themselves, with buffers of a pool.

use super::*;

/// Sends `count` messages of one byte, each after the one before has completed.
fn sends<B: Brand>(tasks: &mut Tasks<B>, count: usize) {
    for _ in 0..count {
        block_on(tasks.left.0.send(tasks.buffer(b"x")).unwrap()).unwrap();
    }
}

#[test]
fn a_receiver_posts_by_itself_from_a_pool() {
    let mut tasks = tasks!();
    let pool = pool_of(&tasks, 3);
    let too_long = tasks.right.1.refill_from(&pool, 65, 2).unwrap_err();
    assert!(matches!(too_long, RefillError::TooLong(_)), "{too_long:?}");
    assert_eq!(free(&pool), 3);
    tasks.right.1.refill_from(&pool, 64, 2).unwrap();
    assert_eq!((tasks.right.1.in_flight(), free(&pool)), (2, 1));
    for _ in 0..20 {
        sends(&mut tasks, 1);
        drop(block_on(tasks.right.1.next()).unwrap().unwrap());
    }
    // A message that the program has not taken yet counts as one of the two receives of `refill_from`, so a slow
    // program does not empty the pool.
    sends(&mut tasks, 1);
    drop(block_on(tasks.right.1.next()).unwrap().unwrap());
    sends(&mut tasks, 1);
    assert_eq!((tasks.right.1.in_flight(), free(&pool)), (1, 1), "the last one waits to be taken");
}

#[test]
fn a_receiver_takes_no_pool_of_another_domain() {
    let mut tasks = Tasks::new(context().checked_domain().unwrap(), 8);
    let other = context().checked_domain().unwrap();
    let classes = vec![SizeClass { len_bytes: 64, count: 2 }];
    let pool = other.pool(&PoolOptions { classes, ..PoolOptions::default() }).unwrap();
    assert_eq!(tasks.right.1.refill_from(&pool, 64, 2).unwrap_err(), RefillError::OtherDomain);
    assert_eq!((tasks.right.1.in_flight(), free(&pool)), (0, 2));
    assert!(block_on(tasks.right.1.next()).is_none());
}

#[test]
fn a_receiver_waits_for_a_buffer_that_the_program_has() {
    let mut tasks = tasks!();
    let pool = pool_of(&tasks, 2);
    tasks.right.1.refill_from(&pool, 64, 5).unwrap();
    sends(&mut tasks, 2);
    let mut kept: Vec<_> = (0..2).map(|_| block_on(tasks.right.1.next()).unwrap().unwrap()).collect();
    assert_eq!((tasks.right.1.in_flight(), free(&pool)), (0, 0));
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(tasks.right.1.poll_next(&mut context).is_pending());
    // There is no driver, so the waiting receiver has already woken its own task, to poll again. Count from here.
    let before = woken.0.load(Ordering::Relaxed);
    drop(kept.pop());
    assert_eq!(woken.0.load(Ordering::Relaxed), before + 1, "the pool wakes the receiver");
    assert!(tasks.right.1.poll_next(&mut context).is_pending());
    assert_eq!(tasks.right.1.in_flight(), 1, "the buffer is posted");
    sends(&mut tasks, 1);
    kept.push(block_on(tasks.right.1.next()).unwrap().unwrap());
    // The pair breaks: the posted buffer comes back, then the receiver ends.
    drop(kept.pop());
    assert!(tasks.right.1.poll_next(&mut context).is_pending());
    tasks.right.0.abort().unwrap();
    assert!(block_on(tasks.right.1.next()).unwrap().is_err());
    assert!(block_on(tasks.right.1.next()).is_none());
    drop(kept);
    assert_eq!(free(&pool), 2);
}

/// One message has come and is kept, so the pool is empty and no receive is posted.
fn starved<B: Brand>(tasks: &mut Tasks<B>, pool: &Pool<B>) -> Buffer<B> {
    tasks.right.1.refill_from(pool, 64, 1).unwrap();
    sends(tasks, 1);
    block_on(tasks.right.1.next()).unwrap().unwrap().into_buffer().unwrap()
}

#[test]
fn a_wait_for_the_next_receive_that_was_dropped_keeps_no_buffer_of_the_pool() {
    let mut tasks = tasks!();
    let pool = pool_of(&tasks, 1);
    let kept = starved(&mut tasks, &pool);
    assert!(poll_once(&mut pin!(tasks.right.1.next())).is_pending());
    drop(kept);
    // The program can take the buffer for something else, such as an answer. Here it gives the buffer back at once.
    assert!(pool.try_take(64).is_ok());
    // A new wait of the receiver takes the buffer as usual.
    assert!(poll_once(&mut pin!(tasks.right.1.next())).is_pending());
    sends(&mut tasks, 1);
    assert!(block_on(tasks.right.1.next()).unwrap().is_ok());
}

#[test]
fn a_receiver_keeps_no_buffer_beside_those_that_it_has_posted() {
    let mut tasks = tasks!();
    let pool = pool_of(&tasks, 2);
    let kept = starved(&mut tasks, &pool);
    sends(&mut tasks, 1);
    let also_kept = block_on(tasks.right.1.next()).unwrap().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(tasks.right.1.poll_next(&mut context).is_pending());
    drop((kept, also_kept));
    assert!(tasks.right.1.poll_next(&mut context).is_pending());
    assert_eq!((tasks.right.1.in_flight(), free(&pool)), (1, 1));
    assert!(pool.try_take(64).is_ok(), "a client that needs it for its request would wait for ever");
}

#[test]
fn the_receives_of_a_pair_that_was_aborted_end_also_while_the_pool_is_empty() {
    let mut tasks = tasks!();
    let pool = pool_of(&tasks, 1);
    let _kept = starved(&mut tasks, &pool);
    let mut context = Context::from_waker(Waker::noop());
    assert!(tasks.right.1.poll_next(&mut context).is_pending());
    tasks.right.0.abort().unwrap();
    assert!(matches!(tasks.right.1.poll_next(&mut context), Poll::Ready(None)));
}

#[test]
fn a_receiver_that_waits_for_the_pool_is_woken_when_its_pair_breaks() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let mut tasks = tasks!();
    let driver = tasks.drive();
    let pool = pool_of(&tasks, 1);
    let kept = starved(&mut tasks, &pool);
    let Tasks { domain, poller, left, right: (mut sender, mut receiver) } = tasks;
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(receiver.poll_next(&mut context).is_pending());
    // The region of this write is no longer registered, so the write fails and breaks the pair.
    let (region, remote) = target(&domain);
    drop(region);
    block_on(sender.write(domain.buffer(8).unwrap(), &remote).unwrap()).unwrap_err();
    let start = std::time::Instant::now();
    let mut seen = 0;
    while start.elapsed() < support::PATIENCE {
        let wakes = woken.0.load(Ordering::SeqCst);
        if wakes != seen && matches!(receiver.poll_next(&mut context), Poll::Ready(None)) {
            drop((kept, pool, poller, left, sender, receiver, domain));
            return driver.join().unwrap();
        }
        seen = wakes;
        thread::sleep(Duration::from_millis(1));
    }
    panic!("nobody has woken the receiver");
}

#[test]
fn a_receiver_does_not_post_more_than_it_was_told() {
    let mut tasks = tasks!();
    let pool = pool_of(&tasks, 6);
    let own = |tasks: &mut Tasks<_>| _ = tasks.right.1.post_receive(tasks.domain.buffer(64).unwrap()).unwrap();
    (0..2).for_each(|_| own(&mut tasks));
    sends(&mut tasks, 2);
    // This call also moves the two messages from the poller to the inbox of the receiver.
    assert!(tasks.poller.take_unclaimed().is_none());
    tasks.right.1.refill_from(&pool, 64, 2).unwrap();
    for _ in 0..2 {
        drop(block_on(tasks.right.1.next()).unwrap().unwrap());
    }
    assert_eq!(tasks.right.1.in_flight(), 2, "messages that waited to be taken");
    own(&mut tasks);
    sends(&mut tasks, 3);
    for _ in 0..3 {
        drop(block_on(tasks.right.1.next()).unwrap().unwrap());
    }
    assert_eq!(tasks.right.1.in_flight(), 2, "the program's own");
}

#[test]
fn a_receiver_that_came_back_from_a_close_still_posts_by_itself() {
    let mut tasks = tasks!();
    let pool = pool_of(&tasks, 2);
    tasks.right.1.refill_from(&pool, 64, 1).unwrap();
    sends(&mut tasks, 1);
    let Tasks { left: (sender, _receiver), right: (_sender, receiver), .. } = tasks;
    let mut back = sender.close(receiver).unwrap_err();
    drop(block_on(back.receiver.next()).unwrap().unwrap());
    assert_eq!(back.receiver.in_flight(), 1);
}

#[test]
fn a_receiver_that_may_post_nothing_waits_for_nothing() {
    let mut tasks = tasks!();
    let pool = pool_of(&tasks, 1);
    tasks.right.1.refill_from(&pool, 64, 0).unwrap();
    assert!(poll_once(&mut pin!(tasks.right.1.next())).is_ready());
    assert_eq!((tasks.right.1.in_flight(), free(&pool)), (0, 1));
}

#[test]
fn a_receiver_tells_how_few_receives_it_has_had() {
    let mut tasks = tasks!();
    let fewest = |tasks: &Tasks<_>| tasks.right.1.counters().fewest_receives;
    for _ in 0..3 {
        tasks.right.1.post_receive(tasks.domain.buffer(64).unwrap()).unwrap();
    }
    assert_eq!(fewest(&tasks), None, "none was taken");
    let mut took = Vec::new();
    for posts in [1, 0, 2, 0] {
        block_on(tasks.left.0.send(tasks.buffer(b"x")).unwrap()).unwrap();
        block_on(tasks.right.1.next()).unwrap().unwrap();
        took.push(fewest(&tasks).unwrap());
        for _ in 0..posts {
            tasks.right.1.post_receive(tasks.domain.buffer(64).unwrap()).unwrap();
        }
    }
    assert_eq!(took, [2, 2, 1, 1]);
    assert_eq!(tasks.left.0.counters().fewest_receives, None, "it is no receiver");
}
