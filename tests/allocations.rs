//! The data path allocates nothing. A counting allocator watches every operation after the set-up.

use interlock::completion::Polling;
use interlock::memory::PoolOptions;
use interlock::shared::SharedLimits;
use interlock::{Buffer, Limits, RemoteAll, WorkRequest};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::pin::pin;
use std::task::Waker;
use support::{Link, PATIENCE, POLLING, Queues, context};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the contract of `System.alloc` is that of `alloc`, which the caller keeps.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller passes memory that `alloc` returned, with its layout. `System` has allocated that memory.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

interlock::domain! { struct Test; }

/// Posts one round of requests; returns how many completions follow.
type Round = fn(&mut Link<Test>, &mut Vec<Buffer<Test>>, &interlock::RemoteRegion<RemoteAll>) -> usize;

const ROUNDS: [(&str, Round); 8] = [
    ("send and receive", |link, spare, _| {
        link.right.post_receive(spare.pop().unwrap()).unwrap();
        link.left.post_send(spare.pop().unwrap()).unwrap();
        2
    }),
    ("send with immediate", |link, spare, _| {
        link.right.post_receive(spare.pop().unwrap()).unwrap();
        link.left.post_send_with_immediate(spare.pop().unwrap(), 1).unwrap();
        2
    }),
    ("write", |link, spare, region| {
        link.left.post_write(spare.pop().unwrap(), region).unwrap();
        1
    }),
    ("write with immediate", |link, spare, region| {
        link.right.post_receive(spare.pop().unwrap()).unwrap();
        link.left.post_write_with_immediate(spare.pop().unwrap(), region, 1).unwrap();
        2
    }),
    ("read", |link, spare, region| {
        link.left.post_read(spare.pop().unwrap(), region).unwrap();
        1
    }),
    ("compare and swap", |link, spare, region| {
        link.left.post_compare_and_swap(spare.pop().unwrap(), region, 0, 0).unwrap();
        1
    }),
    ("fetch and add", |link, spare, region| {
        link.left.post_fetch_and_add(spare.pop().unwrap(), region, 0).unwrap();
        1
    }),
    ("a batch", |link, spare, region| {
        link.left
            .batch(|batch| {
                for _ in 0..4 {
                    batch.post(WorkRequest::write(spare.pop().unwrap(), region).unsignalled()).unwrap();
                }
            })
            .unwrap();
        4
    }),
];

#[test]
fn no_operation_allocates_once_everything_is_set_up() {
    for polling in [Polling::Array, Polling::Extended] {
        POLLING.set(polling);
        count_each_operation(polling);
    }
}

fn count_each_operation(polling: Polling) {
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let memory = link.domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
    let region = memory.remote();
    let mut spare = link.domain.buffers(8, 64).unwrap();
    let mut one = |link: &mut Link<Test>, round: Round| {
        let before = COUNT.get();
        for _ in 0..round(link, &mut spare, &region) {
            let work = link.poller.wait(PATIENCE).unwrap().check().unwrap().into_work();
            let mut buffer = work.into_buffer().unwrap();
            buffer.set_len(64).unwrap();
            spare.push(buffer);
        }
        COUNT.get() - before
    };
    for (name, round) in ROUNDS {
        // Warm up: the soft device itself allocates in the first rounds of an operation.
        for _ in 0..20 {
            one(&mut link, round);
        }
        let allocations: u64 = (0..100).map(|_| one(&mut link, round)).sum();
        assert_eq!(allocations, 0, "{name}, {polling:?}");
    }
}

#[test]
fn a_pool_allocates_nothing_once_everything_is_set_up() {
    interlock::domain! { struct Pooled; }
    let domain = context().named_domain(Pooled).unwrap();
    let pool = domain.pool(&PoolOptions::default()).unwrap();
    let before = COUNT.get();
    for round in 0..1000 {
        let taken = [pool.try_take(100).unwrap(), pool.try_take(5000).unwrap(), pool.try_take(1).unwrap()];
        let [first, second, third] = taken;
        let share = first.share();
        let clone = share.clone();
        drop(if round % 2 == 0 { second } else { third });
        drop((share, clone));
        // The future finds a buffer at its first poll.
        let mut take = pin!(pool.take(round));
        let mut context = std::task::Context::from_waker(Waker::noop());
        assert!(take.as_mut().poll(&mut context).is_ready());
    }
    assert_eq!(COUNT.get() - before, 0);
}

#[test]
fn shared_receives_allocate_nothing_once_everything_is_set_up() {
    for polling in [Polling::Array, Polling::Extended] {
        POLLING.set(polling);
        count_shared_receives();
    }
}

fn count_shared_receives() {
    interlock::domain! { struct Shared; }
    let domain = context().named_domain(Shared).unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.queue(64).unwrap();
    let mut shared = domain.shared_receive_queue(&SharedLimits::default()).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let client = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
        let server = shared.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
        let (to_client, to_server) = (client.endpoint(), server.endpoint());
        pairs.push((client.connect(&to_server).unwrap(), server.connect(&to_client).unwrap()));
    }
    let mut spare = domain.buffers(6, 64).unwrap();
    let mut round = || {
        let before = COUNT.get();
        for (client, _) in &mut pairs {
            shared.post_receive(spare.pop().unwrap()).unwrap();
            client.post_send(spare.pop().unwrap()).unwrap();
        }
        for _ in 0..6 {
            let mut buffer = poller.wait(PATIENCE).unwrap().check().unwrap().into_buffer().unwrap();
            buffer.set_len(64).unwrap();
            spare.push(buffer);
        }
        COUNT.get() - before
    };
    for _ in 0..20 {
        round();
    }
    assert_eq!((0..100).map(|_| round()).sum::<u64>(), 0);
}

/// Lets the driver have its turn.
#[cfg(feature = "aio")]
async fn yield_once() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Waits of each kind, a wait that is dropped before a message has come, and a request that is abandoned.
#[cfg(feature = "aio")]
#[test]
fn awaited_requests_allocate_nothing_once_everything_is_set_up() {
    use interlock::aio::SharedPoller;
    use std::task::Context;
    interlock::domain! { struct Awaited; }
    let Link { domain, poller, left, right, .. } = Link::new(context().named_domain(Awaited).unwrap(), 4);
    let poller = SharedPoller::new(poller);
    let (mut sender, _) = poller.split(left).unwrap();
    let (_, mut receiver) = poller.split(right).unwrap();
    let mut driver = poller.driver().unwrap();
    let memory = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
    let remote = memory.remote();
    let mut spare = domain.buffers(4, 64).unwrap();
    let mut batch = domain.buffers(3, 64).unwrap();
    let count = driver.block_on(async {
        let mut counts = [0; 2];
        for round in 0..120 {
            let before = COUNT.get();
            receiver.post_receive(spare.pop().unwrap()).unwrap();
            {
                // This future parks a waker, and is dropped.
                let mut early = pin!(receiver.next());
                let parked = early.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(parked.is_pending());
            }
            let mut message = spare.pop().unwrap();
            message.set_len(64).unwrap();
            let sent = sender.send(message).unwrap();
            spare.push(receiver.next().await.unwrap().unwrap().into_buffer().unwrap());
            spare.push(sent.await.unwrap());
            let written = sender.write(spare.pop().unwrap(), &remote).unwrap();
            spare.push(written.await.unwrap());
            let posted = sender.post_all(&mut batch, |buffer| WorkRequest::write(buffer, &remote)).unwrap();
            batch = posted.into_vec(std::mem::take(&mut batch)).await.unwrap();
            drop(sender.write(spare.pop().unwrap(), &remote).unwrap());
            loop {
                match sender.take_stray() {
                    Some(stray) => break spare.push(stray.check().unwrap().into_buffer().unwrap()),
                    None => yield_once().await,
                }
            }
            counts[usize::from(round >= 20)] += COUNT.get() - before;
        }
        counts[1]
    });
    assert_eq!(count.unwrap(), 0);
}
