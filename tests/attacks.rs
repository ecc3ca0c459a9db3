//! Programs that try to break the promises of this library with safe calls alone. Each test is named as what never
//! happens. All of them run on soft devices of their own, whose requests stay in flight for as long as the attack wants.

#[path = "common/mod.rs"]
mod common;

use common::Queues;
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{
    AnyQueuePair, BatchError, Brand, Buffer, Completion, CompletionQueue, ConnectAttributes, Context, CreateError,
    DeviceState, Init, Limits, LocalRead, LocalWrite, NamedDomainError, PollError, Poller, Port, PostAllError,
    PostError, PostedMemory, Posting, ProtectionDomain, QueuePair, RemoteAll, RemoteRead, RemoteRegion, RemoteWrite,
    Reset, RetryCount, Status, TransitionFailure, Work, WorkId, WorkRequest,
};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
const LIMITS: Limits =
    Limits { sends: DEPTH, receives: DEPTH, inline_bytes: 64, elements: 1, posting: interlock::Posting::List };

impl<B: Brand> Stage<B> {
    fn new(fabric: Fabric, domain: ProtectionDomain<B>) -> Self {
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.queue(4 * DEPTH).unwrap();
        let (left, right) = connect(&domain, &queue, &port);
        Self { fabric, domain, port, queue, poller, left, right }
    }
}

fn small<B: Brand>(domain: &ProtectionDomain<B>) -> Buffer<B> {
    domain.buffer(8).unwrap()
}

/// Lets the devices do all that they can, and takes all that the poller gives.
fn settle<B: Brand>(fabric: &Fabric, poller: &mut Poller<B>) -> Vec<Completion<B>> {
    fabric.run();
    all(poller)
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
    // A ledger out of joint would give for ever.
    std::iter::from_fn(|| poller.poll().unwrap()).take(100).collect()
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
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.left.post_send(small(&stage.domain)).unwrap();
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
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.left.post_send(small(&stage.domain)).unwrap();
    stage.fabric.run();
    stage.fabric.inject(fails(Verb::PostSend));
    let staged = stage.domain.buffers(2, 8).unwrap();
    let poller = &mut stage.poller;
    let error: BatchError<_, _> = stage
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
    let (queue, poller) = domain.queue(16).unwrap();
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

#[test]
fn a_batch_that_panics_after_a_doorbell_never_takes_back_what_was_rung() {
    let stage = stage!();
    let limits = Limits { sends: 40, receives: 1, ..Limits::default() };
    let (queue, mut poller) = stage.domain.queue(100).unwrap();
    let pair = stage.domain.reliable(&queue, &limits).unwrap().into_init(&stage.port).unwrap();
    let myself = pair.endpoint();
    let mut pair = pair.connect(&myself).unwrap();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let buffers = stage.domain.buffers(35, 8).unwrap();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _ = pair.batch(|batch| {
            for buffer in buffers {
                batch.post(WorkRequest::write(buffer, &region.remote())).unwrap();
            }
            panic!("with 32 rung and 3 staged");
        });
    }));
    assert!(outcome.is_err());
    assert_eq!(pair.sends_in_flight(), 32);
    stage.fabric.run();
    for _ in 0..32 {
        poller.poll().unwrap().unwrap().check().unwrap();
    }
    // The indices that were taken back are used again.
    pair.post_write(small(&stage.domain), &region.remote()).unwrap();
    stage.fabric.run();
    assert_eq!(all(&mut poller).len(), 1);
    assert_eq!(poller.unknown_completions(), 0);
}

#[test]
fn nested_batches_never_mix_their_requests() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let mut buffers = stage.domain.buffers(4, 8).unwrap().into_iter();
    let (left, right) = (&mut stage.left, &mut stage.right);
    let target = region.remote();
    let mut ids: [Vec<WorkId>; 2] = Default::default();
    left.batch(|outer| {
        ids[0].push(outer.post(WorkRequest::write(buffers.next().unwrap(), &target)).unwrap());
        right
            .batch(|inner| {
                ids[1].push(inner.post(WorkRequest::write(buffers.next().unwrap(), &target)).unwrap());
                ids[0].push(outer.post(WorkRequest::write(buffers.next().unwrap(), &target)).unwrap());
                ids[1].push(inner.post(WorkRequest::write(buffers.next().unwrap(), &target)).unwrap());
            })
            .unwrap();
    })
    .unwrap();
    let numbers = [stage.left.number(), stage.right.number()];
    let mut seen = 0;
    for completion in settle(&stage.fabric, &mut stage.poller) {
        let success = completion.check().unwrap();
        let of = numbers.iter().position(|&number| number == success.queue_pair()).unwrap();
        assert!(ids[of].contains(&success.id()));
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn a_batch_that_ends_early_never_loses_what_it_was_given() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let target = region.remote();
    let mut buffers = stage.domain.buffers(6, 8).unwrap();
    let refused = stage
        .left
        .batch(|batch| {
            while let Some(buffer) = buffers.pop() {
                if let Err(PostError::QueueFull(request)) = batch.post(WorkRequest::write(buffer, &target)) {
                    return Some(request.into_memory());
                }
            }
            None
        })
        .unwrap();
    let mut out: Vec<_> =
        settle(&stage.fabric, &mut stage.poller).into_iter().filter_map(|c| c.check().unwrap().into_buffer()).collect();
    assert_eq!(out.len(), 4);
    out.extend(refused);
    out.append(&mut buffers);
    assert_eq!(out.len(), 6);
    assert_disjoint(&out);
}

/// S-1.
#[test]
fn s_1_an_empty_batch_never_reaches_the_provider() {
    let mut stage = stage!();
    stage.fabric.inject(fails(Verb::PostSend));
    stage.left.batch(|_| ()).unwrap();
    let refused = stage.left.post_send(small(&stage.domain));
    assert!(matches!(refused, Err(PostError::Refused { .. })), "the first call of the verb");
    assert_eq!(stage.left.sends_in_flight(), 0);
}

#[test]
fn a_refused_post_never_keeps_the_buffer() {
    let mut stage = stage!();
    let fabric = stage.fabric.clone();
    let mut buffer = small(&stage.domain);
    buffer.write(b"mine").unwrap();
    fabric.inject(fails(Verb::PostSend));
    let Err(PostError::Refused { request: buffer, .. }) = stage.left.post_send(buffer) else { panic!("refused") };
    assert_eq!(&buffer[..], b"mine");
    fabric.inject(fails(Verb::PostRecv));
    let Err(PostError::Refused { request: mut buffer, .. }) = stage.right.post_receive(buffer) else {
        panic!("refused")
    };
    buffer.write(b"still").unwrap();
    // A read that was refused has brought nothing.
    let region = stage.domain.register::<RemoteRead, _>(vec![0_u64; 1]).unwrap();
    fabric.inject(fails(Verb::PostSend));
    let Err(PostError::Refused { request: buffer, .. }) = stage.left.post_read(buffer, &region.remote()) else {
        panic!("refused")
    };
    assert_eq!(&buffer[..], b"still");
    let mut left = stage.left;
    fabric.inject(fails(Verb::PostSend));
    let error = left
        .batch(|batch| {
            batch.post(WorkRequest::read(buffer, &region.remote())).unwrap();
        })
        .unwrap_err();
    let buffer = error.refused.into_iter().next().and_then(PostedMemory::into_buffer).unwrap();
    assert_eq!(&buffer[..], b"still");
    drop(left);
    assert!(all(&mut stage.poller).is_empty());
}

#[test]
fn an_uncertain_send_never_comes_back_before_the_device_is_done_with_it() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(Fault::SendKept { errno: libc::EINVAL });
    let error = stage.left.post_send(small(&stage.domain)).unwrap_err();
    let PostError::Uncertain { id, .. } = error else { panic!("{error}") };
    assert_eq!(stage.left.sends_in_flight(), 1);
    assert!(matches!(stage.left.post_send(small(&stage.domain)), Err(PostError::Broken { first_failure: None, .. })));
    // Moved by nobody here, the kept request runs with the next transition, as on soft-RoCE.
    let left = stage.left.into_sqd().unwrap().into_error().unwrap();
    let out = stage.fabric.run();
    let completions = all(&mut stage.poller);
    assert!(completions.iter().any(|completion| completion.id() == id), "{out} units: {completions:?}");
    drop((left, completions));
    assert!(all(&mut stage.poller).iter().all(|completion| completion.id() != id), "once");
}

#[test]
fn an_uncertain_receive_never_comes_back_before_the_device_is_done_with_it() {
    let mut stage = stage!();
    stage.fabric.inject(Fault::ReceiveKept { errno: libc::EINVAL });
    let error = stage.right.post_receive(small(&stage.domain)).unwrap_err();
    let PostError::Uncertain { id, .. } = error else { panic!("{error}") };
    let mut message = small(&stage.domain);
    message.write(b"late").unwrap();
    stage.left.post_send(message).unwrap();
    let out = settle(&stage.fabric, &mut stage.poller);
    let received = out.into_iter().find(|completion| completion.id() == id).unwrap().check().unwrap().received();
    assert_eq!(&received.unwrap()[..], b"late");
}

#[test]
fn an_uncertain_batch_never_gives_its_buffers_back() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 2]).unwrap();
    stage.fabric.inject(Fault::SendKept { errno: libc::EIO });
    let buffers = stage.domain.buffers(3, 8).unwrap();
    let error = stage
        .left
        .batch(|batch| {
            for buffer in buffers {
                batch.post(WorkRequest::write(buffer, &region.remote())).unwrap();
            }
        })
        .unwrap_err();
    assert_eq!((error.posted, error.refused.len(), stage.left.sends_in_flight()), (0, 0, 3));
    let reset = stage.left.into_reset().unwrap();
    let out: Vec<_> = all(&mut stage.poller).into_iter().map(|c| c.check().unwrap_err()).collect();
    assert!(out.iter().all(|failure| failure.status == Status::Destroyed));
    assert_eq!(out.len(), 3);
    let buffers: Vec<_> = out.into_iter().filter_map(interlock::Failure::into_buffer).collect();
    assert_disjoint(&buffers);
    assert!(reset.into_init(&stage.port).is_ok(), "and the pair lives on");
}

#[test]
fn forgetting_a_completion_leaks_and_never_frees_in_flight_memory() {
    let mut stage = stage!();
    let halves = stage.domain.buffer(16).unwrap().chunks(8);
    for buffer in halves {
        stage.right.post_receive(buffer).unwrap();
    }
    stage.left.post_send(small(&stage.domain)).unwrap();
    for completion in settle(&stage.fabric, &mut stage.poller) {
        mem::forget(completion);
    }
    // The other half of the region is in flight still, and the device writes to it.
    stage.left.post_send(small(&stage.domain)).unwrap();
    assert_eq!(settle(&stage.fabric, &mut stage.poller).len(), 2);
}

#[test]
fn a_forgotten_pair_never_lets_its_memory_go() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    mem::forget(stage.right);
    let buffer = small(&stage.domain);
    stage.left.post_send(buffer).unwrap();
    drop((stage.poller, stage.queue, stage.domain));
    // The device carries the message with nobody left to hear of it.
    stage.fabric.run();
    drop(stage.left);
    stage.fabric.run();
}

#[test]
fn a_forgotten_half_never_ends_the_pair_under_the_device() {
    let mut stage = stage!();
    let (send, mut receive) = stage.right.split();
    receive.post_receive(small(&stage.domain)).unwrap();
    mem::forget(send);
    drop(receive);
    stage.left.post_send(small(&stage.domain)).unwrap();
    stage.fabric.run();
    let out: Vec<_> = all(&mut stage.poller).into_iter().map(|completion| completion.check().unwrap()).collect();
    assert_eq!(out.len(), 2, "the message arrived");
}

#[test]
fn a_pair_that_cannot_be_destroyed_never_lets_its_memory_go() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev").unwrap();
    let mut stage = Stage::new(fabric, context.named_domain(Test).unwrap());
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(fails_for_ever(Verb::DestroyQp));
    let error = stage.right.destroy().unwrap_err();
    assert_eq!(error.source.errno(), libc::EBUSY);
    drop(error);
    assert!(all(&mut stage.poller).is_empty(), "not given back by a destroy that failed");
    stage.left.post_send(small(&stage.domain)).unwrap();
    // The lost pair receives still.
    let out: Vec<_> = settle(&stage.fabric, &mut stage.poller)
        .into_iter()
        .map(|completion| completion.check().unwrap().work())
        .collect();
    assert!(out.iter().any(|work| matches!(work, Work::Received(_))));
    stage.fabric.heal();
    drop((stage.left, stage.poller, stage.queue, stage.domain, out));
    assert!(context.named_domain(Test).is_err(), "its name stays taken with it");
}

#[test]
fn memory_that_cannot_be_deregistered_is_never_freed() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev").unwrap();
    let mut stage = Stage::new(fabric, context.named_domain(Test).unwrap());
    let region = stage.domain.register::<RemoteWrite, _>(counted::<0>(&DROPS, 2)).unwrap();
    let target = region.remote();
    stage.fabric.inject(fails_for_ever(Verb::DeregMr));
    let error = region.deregister().unwrap_err();
    assert_eq!(error.region.load(0).unwrap(), 0);
    drop(error);
    assert_eq!(DROPS.load(Ordering::Relaxed), 0);
    // The peer still reaches it.
    stage.left.post_write(small(&stage.domain), &target).unwrap();
    settle(&stage.fabric, &mut stage.poller).pop().unwrap().check().unwrap();
    stage.fabric.heal();
    drop((stage.left, stage.right, stage.poller, stage.queue, stage.domain));
    assert!(context.named_domain(Test).is_err());
    assert_eq!(DROPS.load(Ordering::Relaxed), 0);
}

/// A type with drop glue of which any bytes are a value.
#[derive(FromBytes, IntoBytes, Immutable, Debug)]
#[repr(transparent)]
struct Counted<const SITE: usize>(u64);

static SITES: [OnceLock<&'static AtomicUsize>; 2] = [const { OnceLock::new() }; 2];

impl<const SITE: usize> Drop for Counted<SITE> {
    fn drop(&mut self) {
        SITES[SITE].get().unwrap().fetch_add(1, Ordering::Relaxed);
    }
}

/// Memory whose drops are counted in `drops`.
fn counted<const SITE: usize>(drops: &'static AtomicUsize, count: usize) -> Vec<Counted<SITE>> {
    SITES[SITE].set(drops).unwrap();
    (0..count).map(|_| Counted(0)).collect()
}

#[test]
fn memory_with_drop_glue_is_never_dropped_in_flight_nor_twice() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    let mut stage = stage!();
    let region = stage.domain.register::<LocalWrite, _>(counted::<1>(&DROPS, 4)).unwrap();
    let (rest, whole) = region.split();
    drop(rest);
    for buffer in whole.chunks(8) {
        stage.right.post_receive(buffer).unwrap();
    }
    stage.left.post_send(small(&stage.domain)).unwrap();
    drop(settle(&stage.fabric, &mut stage.poller));
    assert_eq!(DROPS.load(Ordering::Relaxed), 0);
    drop(stage.right);
    assert_eq!(DROPS.load(Ordering::Relaxed), 0);
    drop(all(&mut stage.poller));
    assert_eq!(DROPS.load(Ordering::Relaxed), 4);
}

#[test]
fn drop_glue_that_calls_the_library_never_deadlocks() {
    interlock::domain! { struct Test; struct Inner; }
    #[derive(FromBytes, IntoBytes, Immutable)]
    #[repr(transparent)]
    struct Calls(u64);
    impl Drop for Calls {
        fn drop(&mut self) {
            let domain = Context::open_on(Fabric::process(), "soft0").unwrap().named_domain(Inner).unwrap();
            let (queue, _poller) = domain.queue(8).unwrap();
            drop((domain.reliable(&queue, &LIMITS).unwrap(), domain.buffer(8).unwrap()));
        }
    }
    // In the last owner's drop of a completion queue that nobody polled.
    let fabric = Fabric::process().clone();
    let mut stage = Stage::new(fabric, Context::open("soft0").unwrap().named_domain(Test).unwrap());
    let region = stage.domain.register::<LocalWrite, _>(vec![Calls(0)]).unwrap();
    stage.right.post_receive(region.split().1).unwrap();
    drop((stage.right, stage.left, stage.poller, stage.domain));
    drop(stage.queue);
}

#[test]
fn what_fails_half_way_never_leaves_anything_behind() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    fabric.inject(fails(Verb::OpenDevice));
    assert!(Context::open_on(&fabric, "dev").is_err());
    let context = Context::open_on(&fabric, "dev").unwrap();
    fabric.inject(fails(Verb::AllocPd));
    assert!(matches!(context.named_domain(Test), Err(NamedDomainError::Verb(_))));
    let domain = context.named_domain(Test).expect("the name was given back");
    for verb in [Verb::CreateCompChannel, Verb::CreateCq] {
        fabric.inject(fails(verb));
        assert!(domain.queue(16).is_err(), "{verb:?}");
    }
    let (queue, _poller) = domain.queue(16).unwrap();
    fabric.inject(fails(Verb::CreateQp));
    assert!(matches!(domain.reliable(&queue, &LIMITS), Err(CreateError::Verb(_))));
    assert_eq!(queue.room(), 16, "the lease was given back");
    fabric.inject(fails(Verb::RegMr));
    let error = domain.register::<LocalWrite, _>(vec![7_u8; 3]).unwrap_err();
    assert_eq!(error.memory, [7; 3]);
    // Only what was made is there, and it can all go.
    assert!(format!("{fabric:?}").contains("regions: 0, completion_queues: 1, queue_pairs: 0"), "{fabric:?}");
    drop((domain, queue, _poller));
    assert!(context.named_domain(Test).is_ok());
}

#[test]
fn a_domain_that_cannot_be_deallocated_never_frees_its_name() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev").unwrap();
    let domain = context.named_domain(Test).unwrap();
    fabric.inject(fails(Verb::DeallocPd));
    drop(domain);
    assert!(matches!(context.named_domain(Test), Err(NamedDomainError::Taken { .. })));
}

#[test]
fn an_advance_that_panics_never_leaves_half_a_pair() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    let mut field: AnyQueuePair<_> = stage.right.into();
    let outcome = catch_unwind(AssertUnwindSafe(|| field.advance(|_pair| panic!("with the pair in hand"))));
    assert!(outcome.is_err());
    assert_eq!(field.state(), "Vacant");
    assert!(field.ready().is_none());
    let failure = all(&mut stage.poller).pop().unwrap().check().unwrap_err();
    assert_eq!(failure.status, Status::Destroyed);
}

#[test]
fn halves_of_two_pairs_never_make_one() {
    let mut stage = stage!();
    let ((left_send, left_receive), (right_send, right_receive)) = (stage.left.split(), stage.right.split());
    let error = left_send.join(right_receive).unwrap_err();
    let mut left = error.send.join(left_receive).unwrap();
    let mut right = right_send.join(error.receive).unwrap();
    right.post_receive(small(&stage.domain)).unwrap();
    left.post_send(small(&stage.domain)).unwrap();
    stage.fabric.run();
    assert_eq!(all(&mut stage.poller).len(), 2);
}

#[test]
fn halves_dropped_on_two_threads_never_destroy_twice_nor_lose_a_buffer() {
    for _ in 0..if cfg!(miri) { 2 } else { 50 } {
        let mut stage = stage!();
        let (send, mut receive) = stage.right.split();
        receive.post_receive(small(&stage.domain)).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || drop(send));
            scope.spawn(move || drop(receive));
        });
        assert_eq!(all(&mut stage.poller).len(), 1);
        drop(stage.left);
        all(&mut stage.poller);
        assert_eq!(stage.queue.room(), stage.queue.capacity());
    }
}

#[test]
fn two_pollers_of_one_pair_on_two_threads_never_give_a_buffer_twice() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    // The pollers are taken again by the threads.
    let (sends, receives) = (domain.queue(8).unwrap().0, domain.queue(8).unwrap().0);
    for _ in 0..if cfg!(miri) { 2 } else { 20 } {
        let make = || domain.reliable_on(&sends, &receives, &LIMITS).unwrap().into_init(&port).unwrap();
        let (mut left, mut right) = join(make(), make());
        let done = AtomicBool::new(false);
        let done = &done;
        thread::scope(|scope| {
            let collect = |queue: &CompletionQueue<Test>| {
                let queue = queue.clone();
                move || {
                    let mut poller = loop {
                        match queue.take_poller() {
                            Some(poller) => break poller,
                            None => thread::yield_now(),
                        }
                    };
                    let mut out = Vec::new();
                    loop {
                        let last = done.load(Ordering::Acquire);
                        out.extend(all(&mut poller));
                        if last {
                            return out;
                        }
                        thread::yield_now();
                    }
                }
            };
            let (one, other) = (scope.spawn(collect(&sends)), scope.spawn(collect(&receives)));
            for buffer in domain.buffers(4, 8).unwrap() {
                right.post_receive(buffer).unwrap();
            }
            for _ in 0..2 {
                left.post_send(domain.buffer(8).unwrap()).unwrap();
            }
            drop((left, right));
            done.store(true, Ordering::Release);
            let mut ids = HashSet::new();
            let mut count = 0;
            for completion in one.join().unwrap().into_iter().chain(other.join().unwrap()) {
                count += 1;
                assert!(ids.insert(completion.id()), "twice");
            }
            assert_eq!(count, 6);
        });
        assert_eq!((sends.room(), receives.room()), (8, 8));
    }
}

/// Each life ends in failures, which another thread polls while the pair is reset: before, between and after, as it comes.
#[test]
fn a_failure_that_another_thread_polls_never_breaks_the_next_life() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
    let Stage { domain, port, queue, mut poller, left, right, .. } = Stage::new(fabric, domain);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let polling = scope.spawn(|| {
            let mut failed = 0;
            while !done.load(Ordering::Acquire) {
                failed += all(&mut poller).into_iter().filter_map(|completion| completion.check().err()).count();
                thread::yield_now();
            }
            failed
        });
        let mut ends = [left, right];
        let rounds = if cfg!(miri) { 4 } else { 200 };
        for round in 0..rounds {
            let made = ends.map(|mut pair| {
                // Now and then all of them have come out before the reset, and the ledgers stay; or they have not.
                for _ in 0..round % 3 {
                    pair.post_receive(small(&domain)).unwrap();
                }
                let mut reset = pair.into_error().unwrap().into_reset().unwrap();
                let mut pair = loop {
                    match reset.into_init(&port) {
                        Ok(pair) => break pair,
                        Err(error) => reset = error.queue_pair,
                    }
                    thread::yield_now();
                };
                pair.post_receive(small(&domain)).expect("no failure in this life");
                pair
            });
            let [left, right] = made;
            ends = join(left, right).into();
            assert!(ends.iter().all(|pair| pair.first_failure().is_none()));
            ends[0].post_send(small(&domain)).expect("no failure in this life");
            while ends[0].sends_in_flight() != 0 || ends[1].receives_in_flight() != 0 {
                thread::yield_now();
            }
        }
        drop(ends);
        done.store(true, Ordering::Release);
        assert!(polling.join().unwrap() > 0);
    });
    all(&mut poller);
    assert_eq!((queue.room(), poller.unknown_completions()), (queue.capacity(), 0));
}

///
#[test]
fn r_6_a_failed_poll_is_not_a_completion() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(fails(Verb::PollCq));
    assert_eq!(stage.poller.poll().unwrap_err(), PollError::Failed);
    assert_eq!(stage.poller.poll().unwrap_err(), PollError::Failed, "from then on");
    assert_eq!(stage.right.receives_in_flight(), 1);
    // The device writes to what is in flight, which nobody has freed.
    stage.left.post_send(small(&stage.domain)).unwrap();
    stage.fabric.run();
    drop(stage.poller);
    let mut poller = stage.queue.take_poller().unwrap();
    assert_eq!(poller.poll().unwrap_err(), PollError::Failed, "for the next poller too");
    drop((stage.left, stage.right));
    assert!(poller.poll().is_err());
}

///
#[test]
fn r_7_a_drain_never_waits_longer_than_it_was_told() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(Fault::FlushWithheld);
    let mut pair = stage.right.into_error().unwrap();
    let begun = Instant::now();
    let undrained = pair.drain(&mut stage.poller, Duration::from_millis(30), drop).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!((undrained.sends, undrained.receives), (0, 1));
    // What proves quiescence is destroying it.
    pair.destroy().unwrap();
    assert_eq!(all(&mut stage.poller).len(), 1);
}

#[test]
fn a_drain_never_waits_longer_because_others_are_busy() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.queue(8 * DEPTH).unwrap();
    let (mut busy, other) = connect(&domain, &queue, &port);
    let (_peer, mut stuck) = connect(&domain, &queue, &port);
    let region = domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    stuck.post_receive(domain.buffer(8).unwrap()).unwrap();
    fabric.inject(Fault::FlushWithheld);
    let mut stuck = stuck.into_error().unwrap();
    busy.post_write(domain.buffer(8).unwrap(), &region.remote()).unwrap();
    let begun = Instant::now();
    let mut overdue = 0;
    let outcome = stuck.drain(&mut poller, Duration::from_millis(10), |completion| {
        // Each completion of the busy pair makes the next.
        if let Ok(success) = completion.check() {
            if begun.elapsed() > Duration::from_millis(500) {
                overdue += 1;
            } else {
                busy.post_write(success.into_buffer().unwrap(), &region.remote()).unwrap();
            }
        }
    });
    assert_eq!(overdue, 0, "the time was over long ago: {outcome:?}");
    drop(other);
}

#[test]
fn a_timeout_that_never_ends_never_panics() {
    let mut stage = stage!();
    let draining = stage.left.into_sqd().unwrap();
    stage.fabric.run();
    assert!(draining.drained(Duration::MAX).unwrap());
    let mut error = draining.into_error().unwrap();
    error.drain(&mut stage.poller, Duration::MAX, drop).unwrap();
}

#[test]
fn a_wait_never_sleeps_through_the_end_of_a_pair() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
    let mut stage = Stage::new(fabric, domain);
    stage.right.post_receive(small(&stage.domain)).unwrap();
    let begun = Instant::now();
    let (right, poller) = (stage.right, &mut stage.poller);
    let failure = thread::scope(|scope| {
        let waiting = scope.spawn(|| poller.wait(Duration::from_secs(10)).map(Completion::check));
        thread::sleep(Duration::from_millis(100));
        drop(right);
        waiting.join().unwrap()
    });
    assert_eq!(failure.unwrap().unwrap_err().status, Status::Destroyed);
    assert!(begun.elapsed() < Duration::from_secs(8), "it came when the time was over");
}

/// J-2: here the handles keep each other alive, whatever is dropped or forgotten first.
#[test]
fn j_2_a_region_never_outlives_its_device() {
    let stage = stage!();
    let region = stage.domain.register::<LocalWrite, _>(vec![1_u8; 8]).unwrap();
    mem::forget(stage.domain.clone());
    drop((stage.left, stage.right, stage.poller, stage.queue, stage.domain, stage.port, stage.fabric));
    assert_eq!(region.deregister().unwrap(), [1; 8]);
}

/// J-4: a forgotten pair and a dropped queue.
#[test]
fn j_4_a_queue_never_ends_under_a_forgotten_pair() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    mem::forget((stage.right, stage.poller));
    drop(stage.queue);
    stage.left.post_send(small(&stage.domain)).unwrap();
    stage.fabric.run();
}

///
#[test]
fn r_1_spare_capacity_is_never_reached_by_a_peer() {
    let mut stage = stage!();
    let mut memory = vec![5_u64; 2];
    memory.reserve_exact(6);
    let region = stage.domain.register::<RemoteAll, _>(memory).unwrap();
    assert_eq!(region.len(), 16);
    let mut record = region.remote().to_bytes();
    record[23] = 24;
    let beyond = RemoteRegion::<RemoteWrite>::from_bytes(&record).unwrap().slice(16..24).unwrap();
    stage.left.post_write(small(&stage.domain), &beyond).unwrap();
    assert_eq!(
        settle(&stage.fabric, &mut stage.poller).pop().unwrap().check().unwrap_err().status,
        Status::RemoteAccess
    );
    assert_eq!(region.deregister().unwrap(), [5, 5]);
}

///
#[test]
fn r_2_memory_that_a_peer_is_writing_to_is_never_freed_before_it_is_deregistered() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 512]).unwrap();
    let stale = region.remote();
    stage.left.post_write(stage.domain.buffer(4096).unwrap(), &stale).unwrap();
    drop(region);
    // The same allocation, perhaps, for something else.
    let mut reused = vec![3_u64; 512];
    assert_eq!(
        settle(&stage.fabric, &mut stage.poller).pop().unwrap().check().unwrap_err().status,
        Status::RemoteAccess
    );
    reused.push(3);
    assert!(reused.iter().all(|&word| word == 3));
}

///
#[test]
fn r_3_memory_of_one_domain_is_never_reached_through_a_pair_of_another() {
    interlock::domain! { struct Other; }
    let mut stage = stage!();
    let other = stage.domain.context().named_domain(Other).unwrap();
    let region = other.register::<RemoteAll, _>(vec![5_u64; 1]).unwrap();
    stage.left.post_write(small(&stage.domain), &region.remote()).unwrap();
    assert_eq!(
        settle(&stage.fabric, &mut stage.poller).pop().unwrap().check().unwrap_err().status,
        Status::RemoteAccess
    );
    assert_eq!(region.load(0).unwrap(), 5);
}

/// what is posted has moved; its neighbours cannot be joined around it.
#[test]
fn r_4_a_part_in_flight_is_never_covered_by_another_buffer() {
    let mut stage = stage!();
    let region = stage.domain.register::<LocalWrite, _>(vec![0_u8; 24]).unwrap();
    let (rest, whole) = region.split();
    let mut parts = whole.chunks(8).into_iter();
    let (first, middle, last) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    stage.right.post_receive(middle).unwrap();
    let error = first.join(last).unwrap_err();
    let error = rest.rejoin(error.left).unwrap_err();
    let (rest, first, last) = (error.region, error.buffer, parts.next());
    assert!(last.is_none());
    drop(stage.right);
    let middle = all(&mut stage.poller).pop().unwrap().check().unwrap_err().into_buffer().unwrap();
    let error = rest.rejoin(first.join(middle).unwrap()).unwrap_err();
    assert_eq!(error.buffer.capacity(), 16, "the third part was dropped, and is never made up for");
}

#[test]
fn memory_that_is_shared_in_flight_is_never_unique() {
    let mut stage = stage!();
    let region = stage.domain.register::<LocalWrite, _>(vec![9_u8; 8]).unwrap();
    let (rest, whole) = region.split();
    let share = whole.share();
    stage.left.post_send(share.clone()).unwrap();
    let share = share.try_into_unique().unwrap_err();
    let other = share.clone();
    drop(share);
    // The last handle of the program, but not of the device.
    let other = other.try_into_unique().unwrap_err();
    drop(stage.left);
    let Some(back) = all(&mut stage.poller).pop().unwrap().check().unwrap_err().memory.into_shared() else {
        panic!("a share")
    };
    let back = back.try_into_unique().unwrap_err();
    drop(other);
    let whole = back.try_into_unique().unwrap();
    assert_eq!(rest.rejoin(whole).unwrap().deregister().unwrap(), [9; 8]);
}

#[test]
fn a_region_shared_as_a_whole_is_never_written_again() {
    let stage = stage!();
    let region = stage.domain.register::<LocalRead, _>(vec![1_u8; 8]).unwrap();
    let share = region.share();
    assert!(share.try_into_unique().is_err(), "no local write");
    let region = stage.domain.register::<RemoteRead, _>(vec![1_u64; 1]).unwrap();
    let remote = region.remote();
    let share = region.share();
    assert!(share.try_into_unique().is_err(), "peers may read it");
    assert_eq!(remote.len(), 8);
}

/// J-3: the program reads as bytes what peers read at the same moment, and nothing that they write.
#[test]
fn j_3_bytes_that_the_program_borrows_are_never_written_by_a_peer() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteRead, _>(vec![7_u64; 4]).unwrap();
    let borrowed = region.as_bytes();
    stage.left.post_read(stage.domain.buffer(32).unwrap(), &region.remote()).unwrap();
    // A peer that takes more than was granted.
    let mut record = region.remote().to_bytes();
    record[3] = RemoteRegion::<RemoteAll>::from_bytes(&all_rights(record)).unwrap().to_bytes()[3];
    let lie = RemoteRegion::<RemoteAll>::from_bytes(&record).unwrap();
    let fabric = stage.fabric.clone();
    let stepping = thread::spawn(move || fabric.run());
    assert!(borrowed.contains(&7));
    stepping.join().unwrap();
    stage.left.post_write(stage.domain.buffer(32).unwrap(), &lie).unwrap();
    let out = settle(&stage.fabric, &mut stage.poller);
    let statuses: Vec<_> = out.into_iter().map(|c| c.check().map_err(|failure| failure.status)).collect();
    assert!(matches!(statuses[..], [Ok(_), Err(Status::RemoteAccess)]), "{statuses:?}");
    assert_eq!(borrowed, [7_u64; 4].as_bytes());
}

/// The record with every remote right in it.
fn all_rights(mut record: [u8; 24]) -> [u8; 24] {
    record[3] = 0b1110;
    record
}

/// S-3: nothing of a completion is read from the device later.
#[test]
fn s_3_a_completion_never_depends_on_what_it_came_from() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.left.post_send(small(&stage.domain)).unwrap();
    let out = settle(&stage.fabric, &mut stage.poller);
    drop((stage.left, stage.right, stage.poller, stage.queue, stage.domain, stage.fabric));
    for completion in out {
        let success = completion.check().unwrap();
        assert_eq!(success.into_buffer().unwrap().len(), 8);
    }
}

/// S-4.
#[test]
fn s_4_a_queue_never_has_two_pollers() {
    let stage = stage!();
    assert!(stage.queue.take_poller().is_none());
    mem::forget(stage.poller);
    assert!(stage.queue.take_poller().is_none(), "the forgotten one may be anywhere");
}

#[test]
fn completions_in_the_pollers_hands_never_come_twice() {
    let mut stage = stage!();
    for buffer in stage.domain.buffers(4, 8).unwrap() {
        stage.right.post_receive(buffer).unwrap();
    }
    for _ in 0..3 {
        stage.left.post_send(small(&stage.domain)).unwrap();
    }
    stage.fabric.run();
    // The poller takes all six from the device, and gives one out.
    let mut out = vec![stage.poller.poll().unwrap().unwrap()];
    drop((stage.left, stage.right));
    drop(stage.poller);
    let mut poller = stage.queue.take_poller().unwrap();
    out.extend(all(&mut poller));
    let ids: HashSet<_> = out.iter().map(Completion::id).collect();
    assert_eq!((out.len(), ids.len()), (7, 7));
    let buffers: Vec<_> =
        out.into_iter().filter_map(|c| c.check().map_or_else(|f| f.into_buffer(), |s| s.into_buffer())).collect();
    assert_eq!(buffers.len(), 7);
    assert_disjoint(&buffers);
    assert_eq!(poller.unknown_completions(), 0);
    assert_eq!(stage.queue.room(), stage.queue.capacity());
}

#[test]
fn completions_of_an_earlier_life_never_retire_requests_of_the_next() {
    let mut stage = stage!();
    for round in 0..5 {
        for buffer in stage.domain.buffers(2, 8).unwrap() {
            stage.right.post_receive(buffer).unwrap();
        }
        stage.left.post_send(small(&stage.domain)).unwrap();
        stage.fabric.run();
        // Two completions are in the queue, and one receive is in flight.
        let (left, right) = (stage.left.into_reset().unwrap(), stage.right.into_reset().unwrap());
        let error = right.into_init(&stage.port).unwrap_err();
        assert!(matches!(error.source, TransitionFailure::Unsettled), "round {round}: {error}");
        assert_eq!(stage.queue.room(), 0, "the lease stays");
        let mut statuses: Vec<_> = all(&mut stage.poller).into_iter().map(|c| c.check().is_ok()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses.len(), 3, "each once");
        let left = left.into_init(&stage.port).unwrap();
        (stage.left, stage.right) = join(left, error.queue_pair.into_init(&stage.port).unwrap());
        assert_eq!(stage.queue.room(), 0);
    }
    assert_eq!(stage.poller.unknown_completions(), 0);
    drop((stage.left, stage.right));
    assert!(all(&mut stage.poller).is_empty());
    assert_eq!(stage.queue.room(), stage.queue.capacity());
}

#[test]
fn a_reset_that_is_destroyed_unsettled_never_returns_its_lease_twice() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    let reset = stage.right.into_reset().unwrap();
    drop(reset);
    drop(stage.left.into_reset().unwrap().into_reset().unwrap());
    assert_eq!(stage.queue.room(), 0);
    assert_eq!(all(&mut stage.poller).len(), 1);
    assert_eq!(stage.queue.room(), stage.queue.capacity());
}

/// Beside what breaks a pair is noted by which way it posts, and there is no other for an atomic write.
#[test]
fn a_pair_of_sessions_never_posts_another_way_in_a_later_life() {
    let stage = stage!();
    let limits = Limits { posting: Posting::AtomicWrites, ..LIMITS };
    let (queue, mut poller) = stage.domain.queue(4 * DEPTH).unwrap();
    let [left, right] =
        [(); 2].map(|()| stage.domain.reliable(&queue, &limits).unwrap().into_init(&stage.port).unwrap());
    let (mut left, mut right) = join(left, right);
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let word = region.remote().word(0).unwrap();
    for (life, leaves) in [(1, 0), (3, 1), (5, 0), (7, DEPTH), (9, 1)] {
        left.post_atomic_write(&word, life).unwrap();
        assert!(settle(&stage.fabric, &mut poller).into_iter().all(|completion| completion.check().is_ok()));
        assert_eq!(region.load(0).unwrap(), life);
        left.batch(|batch| batch.post(WorkRequest::atomic_write(&word, life + 1)).unwrap()).unwrap();
        assert!(settle(&stage.fabric, &mut poller).into_iter().all(|completion| completion.check().is_ok()));
        assert_eq!(region.load(0).unwrap(), life + 1);
        for _ in 0..leaves {
            left.post_atomic_write(&word, 99).unwrap();
        }
        let error = left.into_error().unwrap();
        let (fresh, other) = (error.into_reset().unwrap(), right.into_reset().unwrap());
        assert_eq!(all(&mut poller).len() as u32, leaves);
        (left, right) = join(fresh.into_init(&stage.port).unwrap(), other.into_init(&stage.port).unwrap());
    }
    assert_eq!((region.load(0).unwrap(), left.sends_in_flight()), (10, 0));
}

/// A pair is a few words by value. Wherever those go, and even if they are gone, a request stays with the pair that posted it.
#[test]
fn a_pair_that_was_swapped_or_forgotten_never_gives_back_what_another_posted() {
    let stage = stage!();
    let (queue, mut poller) = stage.domain.queue(8 * DEPTH).unwrap();
    let ((mut one, mut to_one), (mut two, mut to_two)) =
        (connect(&stage.domain, &queue, &stage.port), connect(&stage.domain, &queue, &stage.port));
    let filled = |byte| {
        let mut buffer = small(&stage.domain);
        buffer.fill(byte);
        buffer
    };
    for receiver in [&mut to_one, &mut to_two] {
        receiver.post_receive(filled(0)).unwrap();
        receiver.post_receive(filled(0)).unwrap();
    }
    let (of_one, of_two) = (one.number(), two.number());
    let mut posted = vec![(of_one, one.post_send(filled(1)).unwrap(), 1)];
    mem::swap(&mut one, &mut two);
    posted.push((of_two, one.post_send(filled(2)).unwrap(), 2));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = one.batch(|batch| {
            batch.post(WorkRequest::send(filled(9))).unwrap();
            panic!("while it is lent");
        });
    }));
    assert!(panicked.is_err());
    // Its send is in flight, and its words are gone.
    mem::forget(mem::replace(&mut two, one));
    let (mut send, receive) = two.split();
    let id = thread::scope(|scope| {
        let posting = scope.spawn(|| {
            let id = send.post_send(filled(3)).unwrap();
            drop(send);
            id
        });
        posting.join().unwrap()
    });
    posted.push((of_two, id, 3));
    let mut received = Vec::new();
    for completion in settle(&stage.fabric, &mut poller) {
        let success = completion.check().unwrap();
        let (pair, id) = (success.queue_pair(), success.id());
        match success.work() {
            Work::Received(message) => received.push((pair, message.buffer.as_bytes()[0])),
            work => {
                let Work::Sent(memory) = work else { panic!("a send") };
                let byte = memory.into_buffer().unwrap().as_bytes()[0];
                let at = posted.iter().position(|&sent| sent == (pair, id, byte)).expect("as it was posted");
                posted.remove(at);
            }
        }
    }
    received.sort_unstable_by_key(|&(_, byte)| byte);
    assert_eq!(received, [(to_one.number(), 1), (to_two.number(), 2), (to_two.number(), 3)]);
    assert!(posted.is_empty(), "{posted:?}");
    drop(receive);
    drop((to_one, to_two));
    // What the receivers had left, of which the device let go; nothing of the batch.
    let left: Vec<_> = all(&mut poller).into_iter().map(|completion| completion.check().unwrap_err().status).collect();
    assert_eq!(left, [Status::Destroyed]);
}

/// What broke a pair stands beside its depth: it takes nothing more by any way, and all of its depth once it is reset.
#[test]
fn a_pair_that_broke_never_takes_a_request_by_any_way() {
    let stage = stage!();
    for (posting, in_flight) in
        [Posting::List, Posting::WorkRequestApi].into_iter().flat_map(|way| [(way, 0), (way, 1)])
    {
        let limits = Limits { posting, ..LIMITS };
        let (queue, mut poller) = stage.domain.queue(4 * DEPTH).unwrap();
        let [left, right] =
            [(); 2].map(|()| stage.domain.reliable(&queue, &limits).unwrap().into_init(&stage.port).unwrap());
        let (mut left, right) = join(left, right);
        for _ in 0..in_flight {
            left.post_receive(small(&stage.domain)).unwrap();
        }
        let region = stage.domain.register::<RemoteAll, _>(vec![0_u64; 1]).unwrap();
        let gone = region.remote();
        region.deregister().unwrap();
        let filled = || {
            let mut buffer = small(&stage.domain);
            buffer.fill(1);
            buffer
        };
        left.post(WorkRequest::write(filled(), &gone)).unwrap();
        stage.fabric.run();
        let failure = poller.poll().unwrap().unwrap().check().unwrap_err();
        assert_eq!(failure.status, Status::RemoteAccess);

        let broken = |refused: Option<PostError<_>>| {
            let Some(PostError::Broken { first_failure: Some(Status::RemoteAccess), .. }) = refused else {
                panic!("{posting:?}, {in_flight}: {refused:?}")
            };
        };
        broken(left.post_send(filled()).err().map(|error| error.map(drop)));
        broken(left.post(WorkRequest::send(filled()).unsignalled()).err().map(|error| error.map(drop)));
        broken(left.post_send(interlock::Inline(b"x")).err().map(|error| error.map(drop)));
        broken(left.post_receive(small(&stage.domain)).err().map(|error| error.map(drop)));
        left.batch(|batch| {
            broken(batch.post(WorkRequest::send(filled())).err().map(|error| error.map(drop)));
            broken(batch.post_each([WorkRequest::send(filled()); 1]).err().map(|error| error.map(drop)));
            let rest = batch.post_all(&mut vec![filled(), filled()], WorkRequest::send);
            broken(rest.err().map(|error| error.map(drop)));
        })
        .unwrap();
        match left.post_all(&mut vec![filled(), filled()], WorkRequest::send) {
            Err(PostAllError::Stopped(error)) => broken(Some(error.map(drop))),
            other => panic!("{other:?}"),
        }
        assert_eq!((left.sends_in_flight(), left.receives_in_flight()), (0, in_flight));

        let (left, right) = (left.into_reset().unwrap(), right.into_reset().unwrap());
        assert_eq!(all(&mut poller).len() as u32, in_flight);
        let (left, right) = join(left.into_init(&stage.port).unwrap(), right.into_init(&stage.port).unwrap());
        let ((mut sends, mut receives), _right) = (left.split(), right);
        for _ in 0..DEPTH {
            sends.post(WorkRequest::send(filled()).unsignalled()).unwrap();
            receives.post_receive(small(&stage.domain)).unwrap();
        }
        assert!(matches!(sends.post_send(filled()), Err(PostError::QueueFull(_))));
        assert!(matches!(receives.post_receive(filled()), Err(PostError::QueueFull(_))));
    }
}

#[test]
fn a_refused_reset_never_changes_anything() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(fails(Verb::ModifyQp));
    let error = stage.right.into_reset().unwrap_err();
    let right = error.queue_pair;
    stage.left.post_send(small(&stage.domain)).unwrap();
    assert_eq!(stage.fabric.run() > 0, all(&mut stage.poller).len() == 2);
    drop((stage.left, right));
    all(&mut stage.poller);
    assert_eq!(stage.queue.room(), stage.queue.capacity());
}

#[test]
fn a_work_queue_is_never_deeper_than_what_was_leased() {
    let stage = stage!();
    let (queue, _poller) = stage.domain.queue(10).unwrap();
    for (sends, receives) in [(0, 1), (1, 0), (u32::MAX, 1), (1, u32::MAX), (u32::MAX, u32::MAX), (1 << 31, 1 << 31)] {
        let error = stage.domain.reliable(&queue, &Limits { sends, receives, ..Limits::default() }).unwrap_err();
        assert!(matches!(error, CreateError::Depth { .. }), "{error}");
    }
    for (sends, receives) in [(8, 3), (11, 1), (1 << 22, 1 << 22)] {
        let error = stage.domain.reliable(&queue, &Limits { sends, receives, ..Limits::default() }).unwrap_err();
        assert!(matches!(error, CreateError::NoRoom(_)), "{error}");
        assert_eq!(queue.room(), 10);
    }
    assert!(stage.domain.queue(0).is_err() && stage.domain.queue(u32::MAX).is_err());
}

#[test]
fn a_device_that_is_gone_never_gives_back_what_it_may_still_hold() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(Fault::DeviceRemoved { device: "dev".into() });
    assert!(stage.poller.poll().is_err());
    let error = stage.right.destroy().unwrap_err();
    assert_eq!(error.source.errno(), libc::EIO);
    drop((error, stage.left, stage.poller, stage.queue));
    assert!(stage.domain.buffer(8).is_err());
}

#[test]
fn a_queue_that_cannot_be_destroyed_never_keeps_the_buffers() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
    let mut stage = Stage::new(fabric, domain);
    let region = stage.domain.register::<LocalWrite, _>(vec![0_u8; 8]).unwrap();
    stage.right.post_receive(region.split().1).unwrap();
    stage.fabric.inject(fails_for_ever(Verb::DestroyCq));
    drop((stage.left, stage.right, stage.poller, stage.queue));
    assert!(format!("{:?}", stage.fabric).contains("regions: 0"), "{:?}", stage.fabric);
}

#[test]
fn a_pair_never_says_ready_when_its_transition_failed() {
    let stage = stage!();
    let pair = stage.left.into_reset().unwrap();
    stage.fabric.inject(fails(Verb::ModifyQp));
    let error = pair.into_init(&stage.port).unwrap_err();
    let pair: QueuePair<_, Reset> = error.queue_pair;
    assert_eq!(pair.query_state().unwrap(), DeviceState::Reset);
    let pair = pair.into_init(&stage.port).unwrap();
    let myself = pair.endpoint();
    // The second of the two transitions that make a connection.
    stage.fabric.inject(Fault::VerbFails { verb: Verb::ModifyQp, after: 1, count: 1, errno: libc::EINVAL });
    let error = pair.connect(&myself).unwrap_err();
    let AnyQueuePair::ReadyToReceive(pair) = error.queue_pair else { panic!("where it got to") };
    assert_eq!(pair.query_state().unwrap(), DeviceState::ReadyToReceive);
}

#[test]
fn more_memory_than_a_message_is_never_lost() {
    if cfg!(miri) || usize::BITS < 64 {
        return;
    }
    const GIB: usize = 1 << 30;
    let stage = stage!();
    // Zeroed memory that nobody touches costs nothing.
    let region = stage.domain.register::<LocalWrite, _>(vec![0_u8; 4 * GIB + 4096]).unwrap();
    let (rest, whole) = region.split();
    assert_eq!(whole.capacity(), 4 * GIB + 4096);
    let parts = whole.chunks(GIB);
    assert_eq!(parts.len(), 5);
    assert_disjoint(&parts);
    let whole = parts.into_iter().reduce(|left, right| left.join(right).unwrap()).unwrap();
    assert_eq!(rest.rejoin(whole).unwrap().deregister().unwrap().len(), 4 * GIB + 4096);
}

/// Errors are written where nobody reads any more, as after `program 2>&1 | head`.
#[test]
#[cfg(not(miri))]
fn a_drop_never_panics_for_want_of_standard_error() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    const NAME: &str = "a_drop_never_panics_for_want_of_standard_error";
    if std::env::var_os("INTERLOCK_TEST_CHILD").is_some() {
        // Until the other side of the pipe is closed.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        let mut stage = stage!();
        stage.right.post_receive(small(&stage.domain)).unwrap();
        stage.fabric.inject(fails_for_ever(Verb::DestroyQp));
        drop(stage.right);
        stage.fabric.heal();
        stage.left.post_send(small(&stage.domain)).unwrap();
        assert_eq!(settle(&stage.fabric, &mut stage.poller).len(), 2, "the pair that was not destroyed lives on");
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture"])
        .env("INTERLOCK_TEST_CHILD", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((child.stderr.take(), child.stdin.take()));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The way that a datagram in flight goes by: the program has dropped all that names it.
#[test]
fn an_address_handle_never_ends_before_its_requests_nor_outlives_their_queues() {
    interlock::domain! { struct Test; }
    for order in ["poll", "reset", "pair, poller", "poller, pair"] {
        let fabric = Fabric::manual();
        let handles =
            |count: u32| assert!(format!("{fabric:?}").contains(&format!("address_handles: {count}")), "{order}");
        let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
        let (port, (queue, mut poller)) = (domain.context().active_port().unwrap(), domain.queue(4 * DEPTH).unwrap());
        let open = |pair: QueuePair<_, Reset, _>| pair.into_init(&port).unwrap().open().unwrap();
        let mut pair = open(domain.datagram(&queue, &LIMITS).unwrap());
        let send = |pair: &mut QueuePair<_, _, _>| {
            let myself = domain.recipient(&port, &pair.endpoint(), interlock::Qkey::USUAL).unwrap();
            let _ = pair.post_send_to(small(&domain), &myself).unwrap();
        };
        send(&mut pair);
        send(&mut pair);
        handles(2);
        match order {
            "poll" => {
                pair.destroy().unwrap();
                // The poller has not heard of it yet.
                handles(0);
                assert_eq!(all(&mut poller).len(), 2, "destroyed");
                drop(poller);
            }
            "reset" => {
                let pair = pair.into_reset().unwrap();
                handles(2);
                assert_eq!(all(&mut poller).len(), 2, "of the life before");
                let mut pair = open(pair);
                (0..DEPTH).for_each(|_| send(&mut pair));
                // A later request has each place.
                handles(DEPTH);
                assert_eq!(settle(&fabric, &mut poller).len() as u32, DEPTH);
                drop(poller);
            }
            "pair, poller" => {
                drop(pair);
                handles(0);
                drop(poller);
            }
            _ => drop((poller, pair)),
        }
        drop(queue);
        drop(domain);
        drop(port);
        handles(0);
        assert!(format!("{fabric:?}").contains("regions: 0, completion_queues: 0, queue_pairs: 0"), "{fabric:?}");
    }
}
