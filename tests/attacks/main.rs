//! Attacks that use only safe calls on the promises of this library. Each test is named after what never happens. Each
//! runs on a soft device of its own, whose requests stay in flight for as long as the attack needs.
//!
//! Each file attacks one kind of promise.

/// Makes a stage.
macro_rules! stage {
    () => {{
        let fabric = interlock::soft::Fabric::manual();
        let domain = interlock::Context::open_on(&fabric, "dev").unwrap().checked_domain().unwrap();
        super::Stage::new(fabric, domain)
    }};
}

mod leaks;
mod lives;
mod memory;
mod polling;
mod posting;

use interlock::attributes::ConnectAttributes;
use interlock::number::RetryCount;
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{Brand, Buffer, Completion, CompletionQueue, Init, Limits, Poller, Port, ProtectionDomain, QueuePair};
use support::Queues;

/// Two connected pairs of depth 4 on one completion queue. The fabric is manual: nothing moves until `run` is called.
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
    Limits { sends: DEPTH, receives: DEPTH, inline_bytes: 64, elements: 1, posting: interlock::queue::Posting::List };

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

/// Runs the devices as far as they go, and returns all completions.
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
    // Stop after 100: a ledger with a wrong count might return completions without end.
    std::iter::from_fn(|| poller.poll().unwrap()).take(100).collect()
}

fn fails(verb: Verb) -> Fault {
    Fault::VerbFails { verb, after: 0, count: 1, errno: libc::ENOMEM }
}

fn fails_for_ever(verb: Verb) -> Fault {
    Fault::VerbFails { verb, after: 0, count: u32::MAX, errno: libc::EBUSY }
}

/// Panics if two of the buffers overlap.
fn assert_disjoint<B: Brand>(buffers: &[Buffer<B>]) {
    let mut ranges: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr_range()).collect();
    ranges.sort_by_key(|range| range.start);
    for neighbours in ranges.windows(2) {
        assert!(neighbours[0].end <= neighbours[1].start, "two buffers of the same bytes");
    }
}
