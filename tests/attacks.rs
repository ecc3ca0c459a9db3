//! Programs that try to break the promises of this library with safe calls alone. Each test is named as what never
//! happens. All of them run on soft devices of their own, whose requests stay in flight for as long as the attack wants.

use interlock::soft::{Fabric, Fault, Verb};
use interlock::{
    AnyQueuePair, BatchError, Brand, Buffer, Completion, CompletionQueue, ConnectAttributes, Context, CreateError,
    Init, InitAttributes, Limits, LocalRead, LocalWrite, MAX_MESSAGE_BYTES, Memory, NamedDomainError, Pages, PollError,
    Poller, Port, PostError, PostedMemory, ProtectionDomain, QueuePair, ReadyToSend, RemoteAll, RemoteRead,
    RemoteRegion, RemoteWrite, Reset, RetryCount, Status, TransitionFailure, Work, WorkId, WorkRequest,
};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{mem, thread};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Two connected pairs of depth 4 on one completion queue of a manual fabric: nothing moves but by `run`.
struct Stage<B> {
    fabric: Fabric,
    domain: ProtectionDomain<B>,
    port: Port,
    queue: CompletionQueue<B>,
    poller: Poller<B>,
    left: QueuePair<B>,
    right: QueuePair<B>,
}

const DEPTH: u32 = 4;
const LIMITS: Limits = Limits { sends: DEPTH, receives: DEPTH };

impl<B: Brand> Stage<B> {
    fn new(fabric: Fabric, domain: ProtectionDomain<B>) -> Self {
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.completion_queue(4 * DEPTH).unwrap();
        let (left, right) = connect(&domain, &queue, &port);
        Self { fabric, domain, port, queue, poller, left, right }
    }

    fn buffer(&self) -> Buffer<B> {
        self.domain.buffer(8).unwrap()
    }

    /// Lets the devices do all that they can, and takes all that the poller gives.
    fn settle(&mut self) -> Vec<Completion<B>> {
        self.fabric.run();
        all(&mut self.poller)
    }
}

fn connect<B: Brand>(
    domain: &ProtectionDomain<B>,
    queue: &CompletionQueue<B>,
    port: &Port,
) -> (QueuePair<B>, QueuePair<B>) {
    let left = domain.reliable(queue, &LIMITS).unwrap().into_init(port).unwrap();
    let right = domain.reliable(queue, &LIMITS).unwrap().into_init(port).unwrap();
    join(left, right)
}

fn join<B: Brand>(left: QueuePair<B, Init>, right: QueuePair<B, Init>) -> (QueuePair<B>, QueuePair<B>) {
    let attr = ConnectAttributes { retry_count: RetryCount::new(1).unwrap(), ..Default::default() };
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    (left.connect_with(&to_right, &attr).unwrap(), right.connect_with(&to_left, &attr).unwrap())
}

fn all<B: Brand>(poller: &mut Poller<B>) -> Vec<Completion<B>> {
    std::iter::from_fn(|| poller.poll().unwrap()).collect()
}

fn fails(verb: Verb) -> Fault {
    Fault::VerbFails { verb, after: 0, count: 1, errno: libc::ENOMEM }
}

fn fails_for_ever(verb: Verb) -> Fault {
    Fault::VerbFails { verb, after: 0, count: u32::MAX, errno: libc::EBUSY }
}

/// Where the bytes of each are; fails if two overlap.
fn assert_disjoint<B: Brand>(buffers: &[Buffer<B>]) {
    let mut ranges: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr_range()).collect();
    ranges.sort_by_key(|range| range.start);
    for neighbours in ranges.windows(2) {
        assert!(neighbours[0].end <= neighbours[1].start, "two buffers of the same bytes");
    }
}

/// Starts a manual stage in a domain of its own name.
macro_rules! stage {
    () => {{
        interlock::domain! { struct Test; }
        let fabric = Fabric::manual();
        let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
        Stage::new(fabric, domain)
    }};
}

#[test]
fn what_a_panicking_batch_took_back_never_comes_out_of_the_poller() {
    let mut stage = stage!();
    stage.right.post_receive(stage.buffer()).unwrap();
    stage.left.post_send(stage.buffer()).unwrap();
    stage.fabric.run();
    let staged = stage.domain.buffers(2, 8).unwrap();
    let (left, poller) = (&mut stage.left, &mut stage.poller);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _ = left.batch(|batch| {
            for buffer in staged {
                batch.post(WorkRequest::send(buffer)).unwrap();
            }
            // The poller looks at the ledger while it has requests that the device was never given.
            assert_eq!(all(poller).len(), 2);
            panic!("in the middle of a batch");
        });
    }));
    assert!(outcome.is_err());
    assert_eq!(stage.left.sends_in_flight(), 0);
    drop(stage.left);
    assert!(all(&mut stage.poller).is_empty(), "taken back, and given out once more");
}

#[test]
fn what_a_provider_refused_in_a_batch_never_comes_out_of_the_poller_too() {
    let mut stage = stage!();
    stage.right.post_receive(stage.buffer()).unwrap();
    stage.left.post_send(stage.buffer()).unwrap();
    stage.fabric.run();
    stage.fabric.inject(fails(Verb::PostSend));
    let staged = stage.domain.buffers(2, 8).unwrap();
    let poller = &mut stage.poller;
    let error: BatchError<_> = stage
        .left
        .batch(|batch| {
            for buffer in staged {
                batch.post(WorkRequest::send(buffer)).unwrap();
            }
            assert_eq!(all(poller).len(), 2);
        })
        .unwrap_err();
    let mut out: Vec<_> = error.refused.into_iter().filter_map(PostedMemory::into_buffer).collect();
    assert_eq!((error.posted, out.len()), (0, 2));
    drop(stage.left);
    let destroyed = all(&mut stage.poller).into_iter().map(|completion| completion.check().unwrap_err());
    out.extend(destroyed.filter_map(interlock::Failure::into_buffer));
    assert_disjoint(&out);
    assert_eq!(out.len(), 2, "each buffer once");
}

#[test]
fn a_name_is_never_free_while_a_completion_queue_bears_it() {
    interlock::domain! { struct Test; }
    let (one, other) = (Fabric::manual(), Fabric::manual());
    let domain = Context::open_on(&one, "dev").unwrap().named_domain(Test).unwrap();
    let (queue, poller) = domain.completion_queue(16).unwrap();
    drop(domain);
    match Context::open_on(&other, "dev").unwrap().named_domain(Test) {
        Err(error) => assert!(matches!(error, NamedDomainError::Taken { .. }), "{error}"),
        // The queue of one device in a pair of another.
        Ok(domain) => panic!("a second domain of that name: {:?}", domain.reliable(&queue, &LIMITS)),
    }
    drop(queue);
    assert!(Context::open_on(&other, "dev").unwrap().named_domain(Test).is_err(), "the poller bears it too");
    drop(poller);
    assert!(Context::open_on(&other, "dev").unwrap().named_domain(Test).is_ok());
}
