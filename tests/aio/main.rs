//! Futures of posted requests: their results, and that nothing is lost when a future is dropped, forgotten or polled
//! late. The same tests run on every device.

use interlock::aio::{
    Connection, Driver, End, LentSender, PollerCounters, Posted, Receiver, ReceivesError, RefillError, RequestError,
    Sender, SharedPoller, SharedSender, block_on,
};
use interlock::attributes::ConnectAttributes;
use interlock::error::PostAllCause;
use interlock::memory::{BufferList, Foreign, Growth, Pool, PoolOptions, SizeClass};
use interlock::shared::SharedLimits;
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::{
    Brand, Buffer, Checked, Completion, Inline, Limits, LocalWrite, MemoryRegion, PostError, ProtectionDomain,
    QueuePair, ReadyToSend, RemoteAll, RemoteReadWrite, RemoteRegion, Status, WorkRequest,
};
use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use support::{Counted, Guarded, Link, Need, Queues, connect_to_each_other, context, lacks_need};

/// Two connected pairs whose requests are awaited, and what they need.
struct Tasks<B: Brand> {
    domain: ProtectionDomain<B>,
    poller: SharedPoller<B>,
    left: (Sender<B>, Receiver<B>),
    right: (Sender<B>, Receiver<B>),
}

impl<B: Brand> Tasks<B> {
    fn new(domain: ProtectionDomain<B>, depth: u32) -> Self {
        let Link { domain, poller, left, right, .. } = Link::new(domain, depth);
        let poller = SharedPoller::new(poller);
        let (left, right) = (poller.split(left).unwrap(), poller.split(right).unwrap());
        Self { domain, poller, left, right }
    }

    /// A driver on a thread of its own, which ends when everything else is dropped.
    fn drive(&self) -> JoinHandle<()>
    where
        B: 'static,
    {
        let driver = self.poller.driver().unwrap();
        thread::spawn(move || driver.run_on_thread().unwrap())
    }

    fn buffer(&self, text: &[u8]) -> Buffer<B> {
        let mut buffer = self.domain.buffer(64).unwrap();
        buffer.write(text).unwrap();
        buffer
    }
}

/// Two connected pairs in a checked domain. With a named domain in each test, the compiler would make the whole library
/// anew for each of them.
macro_rules! tasks {
    () => {
        Tasks::new(context().checked_domain().unwrap(), 8)
    };
}

mod closing;
mod ends;
mod refill;
mod sharing;
mod slots;
mod wakers;

/// A target of one-sided requests. It stays registered until the caller drops the region.
fn target<B: Brand>(
    domain: &ProtectionDomain<B>,
) -> (MemoryRegion<B, RemoteReadWrite, Vec<u64>>, RemoteRegion<RemoteReadWrite>) {
    let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
    let remote = region.remote();
    (region, remote)
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets the driver poll, at least twice.
fn takes_turns<B: Brand>(driver: &mut Driver<B>) {
    let mut count = 0;
    let turns = poll_fn(|context| {
        count += 1;
        context.waker().wake_by_ref();
        if count < 3 { Poll::Pending } else { Poll::Ready(()) }
    });
    driver.block_on(turns).unwrap();
}

/// The buffer of a completion, whatever its status.
fn buffer_of<B>(completion: Completion<B>) -> Buffer<B> {
    match completion.check() {
        Ok(success) => success.into_buffer().unwrap(),
        Err(failure) => failure.into_buffer().unwrap(),
    }
}

fn pool_of<B: Brand>(tasks: &Tasks<B>, count: u32) -> Pool<B> {
    let classes = vec![SizeClass { len_bytes: 64, count }];
    tasks.domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() }).unwrap()
}

fn free<B: Brand>(pool: &Pool<B>) -> usize {
    pool.stats().classes[0].free
}

/// Waits until `count` strays have come.
fn strays<B: Brand>(sender: &mut Sender<B>, count: usize) -> Vec<Buffer<B>> {
    let mut found = Vec::new();
    while found.len() < count {
        match sender.take_stray() {
            Some(stray) => found.push(buffer_of(stray)),
            None => {
                // Any poll of the completion queue finds the strays. Here the wait for a send polls it.
                block_on(sender.send(Inline(b"")).unwrap()).ok();
                thread::yield_now();
            }
        }
    }
    found
}

#[test]
fn a_message_comes_and_both_buffers_come_back() {
    let mut tasks = tasks!();
    let driver = tasks.drive();
    block_on(async {
        tasks.right.1.post_receive(tasks.domain.buffer(64).unwrap()).unwrap();
        let sent = tasks.left.0.send(tasks.buffer(b"hello")).unwrap().await.unwrap();
        let message = tasks.right.1.next().await.unwrap().unwrap().into_received().unwrap();
        assert_eq!((&sent[..], &message[..]), (&b"hello"[..], &b"hello"[..]));
        assert!(tasks.right.1.next().await.is_none(), "no receive is posted");
    });
    drop(tasks);
    driver.join().unwrap();
}

/// On the soft device all requests complete at once. So the poll for the first completion takes all of them from the
/// device.
#[test]
fn what_came_with_the_answer_of_one_is_there_for_all() {
    let domain = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap().checked_domain().unwrap();
    let (queue, poller) = domain.queue(64).unwrap();
    let poller = SharedPoller::new(poller);
    let (region, remote) = target(&domain);
    let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
    let port = domain.context().active_port().unwrap();
    let pair = || domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let (left, mut right) = connect_to_each_other(&domain, pair(), pair(), &ConnectAttributes::default());
    // `right` is not split, so no sender or receiver claims its completions: `take_unclaimed` returns them.
    let (mut sender, mut receiver) = poller.split(left).unwrap();
    for start in 0..4 {
        receiver.post_receive(domain.buffer(16).unwrap()).unwrap();
        let write = |_| Some(sender.write(domain.buffer(8).unwrap(), &remote).unwrap());
        let [first, mut dropped, mut last] = [(); 3].map(write);
        right.post_send(domain.buffer(8).unwrap()).unwrap();
        block_on(first.unwrap()).unwrap();
        // Fetch the four completions. Each round begins with a different one.
        for step in start..start + 4 {
            match step % 4 {
                0 => assert!(poller.take_unclaimed().is_some()),
                1 => assert!(block_on(receiver.next()).unwrap().is_ok()),
                2 => {
                    drop(dropped.take());
                    assert!(sender.take_stray().is_some());
                }
                _ => drop(block_on(last.take().unwrap()).unwrap()),
            }
        }
        assert!(poller.take_unclaimed().is_none() && sender.take_stray().is_none());
        assert_eq!((sender.in_flight(), receiver.in_flight()), (0, 0));
    }
    drop((sender, receiver, right, poller, region));
}

/// The receiver polls only when all messages have come, so it finds several completions at once.
#[test]
fn messages_that_came_together_are_received_in_their_order() {
    if lacks_need(Need::Order) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let limits = Limits { sends: 8, receives: 8, ..Limits::default() };
    let port = domain.context().active_port().unwrap();
    let [(queue, poller), (other, others)] = [(); 2].map(|()| domain.queue(limits.completions()).unwrap());
    let left = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let right = domain.reliable(&other, &limits).unwrap().into_init(&port).unwrap();
    let (left, right) = connect_to_each_other(&domain, left, right, &ConnectAttributes::default());
    let (mut sender, _receiver) = SharedPoller::new(poller).split(left).unwrap();
    let (_sender, mut receiver) = SharedPoller::new(others).split(right).unwrap();
    for count in 2..=8_u8 {
        (0..count).for_each(|_| _ = receiver.post_receive(domain.buffer(1).unwrap()).unwrap());
        for number in 0..count {
            let mut buffer = domain.buffer(1).unwrap();
            buffer.write(&[number]).unwrap();
            block_on(sender.send(buffer).unwrap()).unwrap();
        }
        // The last messages can arrive a little after their sends have completed, so give them time. The test also
        // passes if a message comes later.
        thread::sleep(Duration::from_millis(20));
        let found: Vec<_> =
            (0..count).map(|_| block_on(receiver.next()).unwrap().unwrap().into_received().unwrap()[0]).collect();
        assert_eq!(found, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn writes_reads_and_atomics_give_what_they_fetched() {
    let mut tasks = tasks!();
    let driver = tasks.drive();
    let (region, remote) = target(&tasks.domain);
    let mut buffer = tasks.domain.buffer(8).unwrap();
    buffer.write(&7_u64.to_ne_bytes()).unwrap();
    block_on(async {
        let sender = &mut tasks.left.0;
        let buffer = sender.write(buffer, &remote).unwrap().await.unwrap();
        let word = remote.slice(0..8).unwrap();
        let buffer = sender.read(buffer, &word).unwrap().await.unwrap();
        assert_eq!(buffer[..], 7_u64.to_ne_bytes());
        if !lacks_need(Need::Atomics) {
            let region = tasks.domain.register::<RemoteAll, _>(vec![7_u64]).unwrap();
            let remote = region.remote();
            let fetched = sender.fetch_and_add(buffer, &remote, 3).unwrap().await.unwrap();
            assert_eq!(fetched.original, 7);
            let fetched = sender.compare_and_swap(fetched.buffer, &remote, 10, 99).unwrap().await.unwrap();
            assert_eq!(fetched.original, 10);
        }
    });
    drop((tasks, region));
    driver.join().unwrap();
}

#[test]
fn shares_lists_and_inline_bytes_come_back_as_what_they_are() {
    let mut tasks = tasks!();
    let (region, remote) = target(&tasks.domain);
    let share = tasks.buffer(b"again").share();
    let list = BufferList::new(vec![tasks.buffer(b"one")]);
    block_on(async {
        let sender = &mut tasks.left.0;
        let (first, second) = (sender.write(share.clone(), &remote).unwrap(), sender.write(share, &remote).unwrap());
        assert_eq!(&first.await.unwrap()[..], b"again");
        assert_eq!(&second.await.unwrap()[..], b"again");
        let list = sender.post(WorkRequest::write(list, &remote)).unwrap().await.unwrap();
        assert_eq!(list.into_buffers().len(), 1);
        let () = sender.write(Inline(b""), &remote).unwrap().await.unwrap();
    });
    drop((tasks, region));
}

#[test]
fn a_future_that_is_dropped_abandons_the_answer_and_not_the_request() {
    let mut tasks = tasks!();
    let driver = tasks.drive();
    let (region, remote) = target(&tasks.domain);
    let sender = &mut tasks.left.0;
    // One future is dropped at once, one after a poll, and one by `abandon`.
    drop(sender.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap());
    let mut polled = sender.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap();
    let answered = poll_once(&mut polled).is_ready();
    drop(polled);
    sender.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap().abandon();
    for _ in 0..8 {
        tasks.right.1.post_receive(tasks.domain.buffer(8).unwrap()).unwrap();
    }
    assert_eq!(strays(&mut tasks.left.0, 3 - usize::from(answered)).len(), 3 - usize::from(answered));
    drop((tasks, region));
    driver.join().unwrap();
}

#[test]
fn a_stray_comes_home_though_nobody_waits() {
    let mut tasks = tasks!();
    let driver = tasks.drive();
    let (region, remote) = target(&tasks.domain);
    drop(tasks.left.0.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap());
    // Only the driver polls: `take_stray` does not.
    assert!(support::eventually(|| tasks.left.0.take_stray().is_some()));
    assert_eq!(tasks.left.0.counters().strays, 1);
    drop((tasks, region));
    driver.join().unwrap();
}

/// Memory of a pool goes home by itself, so its completion is not kept as a stray.
#[test]
fn a_stray_of_a_pool_goes_home() {
    let mut tasks = tasks!();
    let driver = tasks.drive();
    let (region, remote) = target(&tasks.domain);
    let classes = vec![SizeClass { len_bytes: 64, count: 2 }];
    let options = PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() };
    let pool = tasks.domain.pool(&options).unwrap();
    for _ in 0..20 {
        let buffer = block_on(pool.take(8)).unwrap();
        drop(tasks.left.0.write(buffer, &remote).unwrap());
    }
    assert!(support::eventually(|| pool.stats().classes[0].free == 2));
    assert!(tasks.left.0.take_stray().is_none());
    let counters = tasks.left.0.counters();
    assert_eq!((counters.posted, counters.completed, counters.failed, counters.strays), (20, 20, 0, 20));
    assert!(support::eventually(|| tasks.poller.counters().turns > 0), "the driver has begun");
    drop((tasks, region, pool));
    driver.join().unwrap();
}

#[test]
fn a_future_that_is_forgotten_loses_no_request_of_another() {
    let mut tasks = tasks!();
    let (region, remote) = target(&tasks.domain);
    let sender = &mut tasks.left.0;
    let buffer = || tasks.domain.buffer(8).unwrap();
    // These are enough rounds for the requests to go around the ring of the send queue more than once.
    for round in 0..if cfg!(miri) { 14 } else { 40 } {
        if round % 3 == 0 {
            let mut lost = sender.write(buffer(), &remote).unwrap();
            if round % 2 == 0 {
                let _ = poll_once(&mut lost);
            }
            mem::forget(lost);
        }
        let kept = sender.write(buffer(), &remote).unwrap();
        block_on(kept).unwrap();
    }
    drop((tasks, region));
}

#[test]
fn an_answer_waits_for_a_future_that_is_polled_late() {
    let mut tasks = tasks!();
    let (region, remote) = target(&tasks.domain);
    let sender = &mut tasks.left.0;
    let late: Vec<_> = (0..3).map(|_| sender.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap()).collect();
    for _ in 0..if cfg!(miri) { 12 } else { 40 } {
        block_on(sender.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap()).unwrap();
    }
    for posted in late {
        block_on(posted).unwrap();
    }
    drop((tasks, region));
}

#[test]
fn a_batch_is_one_future_and_its_vector_comes_back() {
    let mut tasks = tasks!();
    let driver = tasks.drive();
    let (region, remote) = target(&tasks.domain);
    let mut buffers = tasks.domain.buffers(20, 8).unwrap();
    let mut done = 0;
    block_on(async {
        while done < 20 {
            tasks.left.0.room().await.unwrap();
            let posted = tasks.left.0.post_all(&mut buffers, |buffer| WorkRequest::write(buffer, &remote)).unwrap();
            done += posted.await.unwrap().len();
        }
    });
    assert_eq!(done, 20);
    drop((tasks, region));
    driver.join().unwrap();
}

#[test]
fn a_batch_that_is_dropped_gives_strays() {
    let mut tasks = tasks!();
    let (region, remote) = target(&tasks.domain);
    let mut buffers = tasks.domain.buffers(6, 8).unwrap();
    let mut posted = tasks.left.0.post_all(&mut buffers, |buffer| WorkRequest::write(buffer, &remote)).unwrap();
    let answered = 6 - if poll_once(&mut posted).is_ready() { 0 } else { posted.len() };
    drop(posted);
    for _ in 0..8 {
        tasks.right.1.post_receive(tasks.domain.buffer(8).unwrap()).unwrap();
    }
    assert_eq!(strays(&mut tasks.left.0, 6 - answered).len(), 6 - answered);
    drop((tasks, region));
}

#[test]
fn room_comes_when_a_request_completes() {
    let mut tasks = tasks!();
    let driver = tasks.drive();
    let (region, remote) = target(&tasks.domain);
    let sender = &mut tasks.left.0;
    block_on(async {
        for _ in 0..100 {
            sender.room().await.unwrap();
            drop(sender.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap());
        }
    });
    drop((tasks, region));
    driver.join().unwrap();
}

#[test]
fn without_a_driver_futures_poll_by_themselves() {
    let mut tasks = tasks!();
    tasks.right.1.post_receive(tasks.domain.buffer(64).unwrap()).unwrap();
    let sent = tasks.left.0.send(tasks.buffer(b"alone")).unwrap();
    block_on(async {
        let message = tasks.right.1.next().await.unwrap().unwrap().into_received().unwrap();
        assert_eq!(&message[..], b"alone");
        sent.await.unwrap();
    });
}

#[test]
fn a_driver_runs_a_future_on_its_own_thread() {
    let mut tasks = tasks!();
    let mut driver = tasks.poller.driver().unwrap();
    assert!(tasks.poller.driver().is_none(), "one at a time");
    tasks.right.1.post_receive(tasks.domain.buffer(64).unwrap()).unwrap();
    let sent = tasks.left.0.send(tasks.buffer(b"one thread")).unwrap();
    let message = driver
        .block_on(async {
            sent.await.unwrap();
            tasks.right.1.next().await.unwrap().unwrap().into_received().unwrap()
        })
        .unwrap();
    assert_eq!(&message[..], b"one thread");
    drop(driver);
    assert!(tasks.poller.driver().is_some());
}

/// The driver is dropped while a task sleeps. The task is woken, and goes on without a driver.
#[test]
fn a_driver_that_is_dropped_wakes_all_who_wait() {
    let mut tasks = tasks!();
    let driver = tasks.poller.driver().unwrap();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    tasks.right.1.post_receive(tasks.domain.buffer(64).unwrap()).unwrap();
    assert!(tasks.right.1.poll_next(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    drop(driver);
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    let sent = tasks.left.0.send(tasks.buffer(b"on")).unwrap();
    block_on(async {
        sent.await.unwrap();
        tasks.right.1.next().await.unwrap().unwrap();
    });
}

/// A waker that panics.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("this waker always panics");
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// One drop takes in a limited number of completions. The driver takes in the rest.
#[test]
fn a_future_that_is_dropped_behind_many_answers_gives_its_memory_back() {
    let context = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap();
    let mut tasks = Tasks::new(context.checked_domain().unwrap(), 128);
    let driver = tasks.drive();
    let (_region, remote) = target(&tasks.domain);
    assert!(support::eventually(|| tasks.poller.counters().turns > 0), "the driver has begun");
    let mut posted: Vec<_> = (0..if cfg!(miri) { 40 } else { 100 })
        .map(|_| tasks.left.0.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap())
        .collect();
    drop(posted.pop());
    assert!(support::eventually(|| tasks.left.0.counters().strays == 1));
    drop((posted, tasks));
    driver.join().unwrap();
}

/// Only a task that waits is counted as asleep, not the drop of a future.
#[test]
fn the_drop_of_a_future_is_no_sleep() {
    let context = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap();
    let mut tasks = Tasks::new(context.checked_domain().unwrap(), 4);
    let driver = tasks.drive();
    // The peer has no receive, so these sends do not complete.
    drop(tasks.left.0.send(tasks.buffer(b"x")).unwrap());
    assert_eq!(tasks.poller.counters().sleeps, 0);
    let mut posted = tasks.left.0.send(tasks.buffer(b"x")).unwrap();
    assert!(poll_once(&mut posted).is_pending());
    assert_eq!(tasks.poller.counters().sleeps, 1);
    drop((posted, tasks));
    driver.join().unwrap();
}

#[test]
fn a_pair_that_is_dropped_answers_its_futures() {
    let mut tasks = tasks!();
    let driver = tasks.drive();
    let mut others = Vec::new();
    // No receive is posted, so on most devices the sends do not complete before the drop. iWARP devices can complete a
    // send without a receive at the peer.
    for _ in 0..4 {
        match tasks.left.0.send(tasks.buffer(b"never")) {
            Ok(posted) => others.push(posted),
            // Soft iWARP ends the stream when a message finds no receive. While it does so, its doorbell fails.
            Err(PostError::Uncertain { .. } | PostError::Broken { .. }) if context().is_iwarp() => break,
            Err(error) => panic!("{error}"),
        }
    }
    let Tasks { domain, poller, left, right } = tasks;
    drop((left, right));
    for posted in others {
        let failure = match block_on(posted) {
            Ok(_) => continue, // The device was faster than the drop.
            Err(RequestError::Failed(failure)) => failure,
            Err(error) => panic!("{error}"),
        };
        // If soft iWARP ends the stream before the drop, the sends fail with other statuses.
        let expected = matches!(failure.status, Status::Destroyed | Status::Flushed | Status::RnrRetryExceeded);
        assert!(expected || context().is_iwarp(), "{:?}", failure.status);
        assert!(failure.into_buffer().is_some());
    }
    drop((domain, poller));
    driver.join().unwrap();
}

#[test]
fn a_pair_of_another_queue_comes_back() {
    let tasks = tasks!();
    let (queue, _poller) = tasks.domain.queue(64).unwrap();
    let port = tasks.domain.context().active_port().unwrap();
    if tasks.domain.context().is_iwarp() {
        return;
    }
    let limits = Limits { sends: 2, receives: 2, ..Limits::default() };
    let pair = tasks.domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let myself = pair.endpoint();
    let pair = pair.connect(&myself).unwrap();
    let number = pair.number();
    let error = tasks.poller.split(pair).unwrap_err();
    assert_eq!(error.queue_pair.number(), number);
}

/// Several tasks on several threads, each with futures that it drops, forgets or awaits.
#[test]
fn many_threads_lose_nothing() {
    let mut tasks = tasks!();
    let driver = tasks.drive();
    let (region, remote) = target(&tasks.domain);
    let rounds = if cfg!(miri) { 10 } else { 2000 };
    thread::scope(|scope| {
        for side in [&mut tasks.left.0, &mut tasks.right.0] {
            let domain = &tasks.domain;
            let remote = &remote;
            scope.spawn(move || {
                let mut mine = domain.buffers(4, 8).unwrap();
                block_on(async {
                    for round in 0..rounds {
                        while let Some(stray) = side.take_stray() {
                            mine.push(buffer_of(stray));
                        }
                        side.room().await.unwrap();
                        let Some(buffer) = mine.pop() else { continue };
                        let mut posted = side.write(buffer, remote).unwrap();
                        match round % 3 {
                            0 => drop(posted),
                            1 => {
                                if let Poll::Ready(answer) =
                                    poll_fn(|context| Poll::Ready(Pin::new(&mut posted).poll(context))).await
                                {
                                    mine.push(answer.unwrap());
                                }
                            }
                            _ => mine.push(posted.await.unwrap()),
                        }
                    }
                    while mine.len() < 4 {
                        if let Some(stray) = side.take_stray() {
                            mine.push(buffer_of(stray));
                        }
                        thread::yield_now();
                    }
                });
            });
        }
    });
    drop((tasks, region));
    driver.join().unwrap();
}

/// A wait for a receive whose future was dropped keeps neither the driver nor memory alive.
#[test]
fn a_wait_that_was_given_up_ends_with_its_half() {
    let tasks = tasks!();
    let driver = tasks.poller.driver().unwrap();
    let Tasks { domain, poller, left: (sender, mut receiver), right } = tasks;
    receiver.post_receive(domain.buffer(8).unwrap()).unwrap();
    let mut next = Box::pin(receiver.next());
    assert!(poll_once(&mut next).is_pending());
    drop(next);
    drop((sender, receiver, right, poller, domain));
    driver.run_on_thread().unwrap();
}

#[test]
fn shared_receives_come_with_the_pair_that_took_them() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.queue(64).unwrap();
    let poller = SharedPoller::new(poller);
    let driver = poller.driver().unwrap();
    let driver = thread::spawn(move || driver.run_on_thread().unwrap());
    let mut stock = domain.shared_receive_queue(&SharedLimits { receives: 8, ..SharedLimits::default() }).unwrap();
    let first = poller.receives_of(&stock).unwrap();
    assert_eq!(poller.receives_of(&stock).unwrap_err(), ReceivesError::Taken);
    drop(first);
    let mut receives = poller.receives_of(&stock).unwrap();
    let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
    let (mut senders, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let server = stock.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let client = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let (client, server) = connect_to_each_other(&domain, client, server, &ConnectAttributes::default());
        senders.push(poller.split(client).unwrap());
        servers.push(poller.split(server).unwrap());
    }
    block_on(async {
        for round in 0..20_u8 {
            stock.post_receive(domain.buffer(64).unwrap()).unwrap();
            let at = usize::from(round % 2);
            let mut text = domain.buffer(64).unwrap();
            text.write(&[round]).unwrap();
            let sent = senders[at].0.send(text).unwrap();
            let success = receives.next().await.unwrap();
            assert_eq!(success.queue_pair(), servers[at].0.number());
            assert_eq!(success.into_received().unwrap()[..], [round]);
            sent.await.unwrap();
        }
    });
    drop((senders, servers, receives, stock, poller, queue, domain));
    driver.join().unwrap();
}

/// The receives of a dropped receiver are freed with its pair, although nobody fetches them.
#[test]
fn a_receiver_that_is_dropped_keeps_no_memory() {
    let freed = Arc::new(AtomicUsize::new(0));
    let mut tasks = Tasks::new(context().checked_domain().unwrap(), 8);
    let driver = tasks.drive();
    let counted = Foreign(Counted::new(8, &freed));
    let (rest, buffer) = tasks.domain.register::<LocalWrite, _>(counted).unwrap().split();
    tasks.right.1.post_receive(buffer).unwrap();
    drop(rest);
    let Tasks { domain, poller, left, right } = tasks;
    drop((left, right));
    assert!(support::eventually(|| freed.load(Ordering::SeqCst) == 1));
    drop((domain, poller));
    driver.join().unwrap();
}

#[test]
fn futures_can_go_to_other_threads() {
    interlock::domain! { struct Test; }
    fn can<T: Send + Sync + Unpin + 'static>() {}
    can::<Posted<Test, Buffer<Test>>>();
    can::<SharedPoller<Test>>();
}

/// The driver of a pair that the device did not destroy ends, and with it the poller. The device may still use what the
/// pair has in flight.
#[test]
fn memory_of_a_pair_that_was_not_destroyed_outlives_its_driver() {
    for is_forgotten in [true, false] {
        let fabric = Fabric::new();
        let freed = Arc::new(AtomicUsize::new(0));
        let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
        let mut tasks = Tasks::new(context.checked_domain().unwrap(), 4);
        let driver = tasks.drive();
        let memory = || tasks.domain.register::<LocalWrite, _>(Foreign(Counted::new(8, &freed))).unwrap().split().1;
        let (to_receive, to_send) = (memory(), memory());
        tasks.right.1.post_receive(to_receive).unwrap();
        // The left side has no receive, so this send does not complete.
        let mut sent = tasks.right.0.send(to_send).unwrap();
        assert!(poll_once(&mut sent).is_pending());
        if !is_forgotten {
            drop(sent);
        } else {
            mem::forget(sent);
        }
        fabric.inject(Fault::VerbFails { verb: Verb::DestroyQp, after: 0, count: u32::MAX, errno: libc::EBUSY });
        drop(tasks);
        if !is_forgotten {
            assert!(support::eventually(|| driver.is_finished()));
            driver.join().unwrap();
        }
        drop(context);
        assert_eq!(freed.load(Ordering::SeqCst), 0, "forgotten: {is_forgotten}");
    }
}

/// A pair that the device does not destroy never gives its requests back.
#[test]
fn a_driver_ends_although_a_pair_was_not_destroyed() {
    for is_dropped_first in [true, false] {
        let fabric = Fabric::new();
        let context = interlock::Context::open_on(&fabric, "soft0").unwrap();
        let mut tasks = Tasks::new(context.checked_domain().unwrap(), 4);
        let driver = tasks.drive();
        // The peer has no receive, so this send does not complete.
        let mut sent = Some(tasks.left.0.send(tasks.buffer(b"x")).unwrap());
        assert!(poll_once(sent.as_mut().unwrap()).is_pending());
        if is_dropped_first {
            sent = None;
        }
        fabric.inject(Fault::VerbFails { verb: Verb::DestroyQp, after: 0, count: u32::MAX, errno: libc::EBUSY });
        drop(tasks);
        drop(sent);
        assert!(support::eventually(|| driver.is_finished()), "the future is dropped first: {is_dropped_first}");
        driver.join().unwrap();
    }
}

/// Each pair leaves a handle of the shared receive queue behind. The last handle frees the receives.
#[test]
fn the_receives_of_a_shared_queue_go_home_with_its_last_pair() {
    let (_fabric, domain) = support::own_device!();
    let (queue, poller) = domain.completion_queue(256).unwrap();
    let poller = SharedPoller::new(poller);
    let mut driver = poller.driver().unwrap();
    let classes = vec![SizeClass { len_bytes: 64, count: 1 }];
    let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() }).unwrap();
    let mut stock = domain.shared_receive_queue(&SharedLimits { receives: 8, ..SharedLimits::default() }).unwrap();
    stock.post_receive(pool.try_take(64).unwrap()).unwrap();
    let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
    let pairs: Vec<_> = (0..20).map(|_| stock.reliable(&queue, &limits).unwrap()).collect();
    drop((pairs, stock));
    driver.block_on(pool.take(64)).unwrap().unwrap();
}

/// The device got the first requests before `make` panicked. They are abandoned, and all items are still there.
#[test]
fn a_batch_whose_items_panic_loses_nothing() {
    for is_shared in [false, true] {
        let context = interlock::Context::open_on(&Fabric::new(), "soft0").unwrap();
        let Tasks { domain, poller, left: (mut sender, _receiver), right: _right } =
            Tasks::new(context.checked_domain().unwrap(), 64);
        let (_region, remote) = target(&domain);
        let classes = vec![SizeClass { len_bytes: 8, count: 60 }];
        let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() }).unwrap();
        let mut items: Vec<_> = (0..60).map(|_| pool.try_take(8).unwrap()).collect();
        let mut made = 0;
        let make = |buffer| {
            made += 1;
            assert!(made <= 40, "this item always panics");
            WorkRequest::write(buffer, &remote)
        };
        if is_shared {
            let shared = sender.into_shared();
            let permits: Vec<_> = (0..8).map(|_| block_on(shared.room()).unwrap()).collect();
            catch_unwind(AssertUnwindSafe(|| shared.with(|sender| drop(sender.post_all(&mut items, make)))))
                .unwrap_err();
            drop(permits);
            sender = shared.try_into_sender().unwrap();
        } else {
            catch_unwind(AssertUnwindSafe(|| drop(sender.post_all(&mut items, make)))).unwrap_err();
        }
        // `make` panicked with the 41st item in hand. The panic dropped this item, so it is back in the pool.
        assert_eq!(items.len(), 19);
        drop(items);
        // This request is signalled. Its completion also completes the unsignalled requests before it.
        block_on(sender.write(domain.buffer(8).unwrap(), &remote).unwrap()).unwrap();
        assert_eq!((free(&pool), sender.in_flight()), (60, 0));
        drop(poller);
    }
}

/// A keep-alive of no time must not keep a poll from returning.
#[test]
fn a_keep_alive_of_no_time_lets_the_poll_return() {
    let (_fabric, domain) = support::own_device!();
    let Link { domain, poller, left, right: _right, .. } = Link::new(domain, 4);
    let mut left = Connection::new(&SharedPoller::new(poller), left).unwrap();
    left.post_receive(domain.buffer(64).unwrap()).unwrap();
    for nothing in [Duration::ZERO, Duration::from_nanos(10)] {
        left.keep_alive(Some(nothing));
        assert!(left.poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}
