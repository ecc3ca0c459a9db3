//! Many pairs, many threads and many faults: nothing is lost, and memory does not grow. This is the short form of
//! `benches/scale` and `benches/soak`. It checks counts and never the clock.

#[path = "../benches/common/mod.rs"]
mod common;

use common::fleet::{Crowd, Fleet, crowd, pair_to_itself, queue_for};
use common::shape::{Ended, poll_each};
use common::{heap, race::race, world::generation};
use interlock::{Brand, Context, Limits, Port, ProtectionDomain};

#[global_allocator]
static ALLOCATOR: heap::Counting = heap::Counting;

fn with_soft_device(f: impl for<'pd> FnOnce(ProtectionDomain<interlock::Scoped<'pd>>, Port)) {
    let fabric = interlock::soft::Fabric::new();
    let context = Context::open_on(&fabric, "scale").unwrap();
    let port = context.active_port().unwrap();
    context.with_domain(|domain| f(domain, port)).unwrap();
}

#[test]
fn a_thousand_pairs_on_one_queue_each_get_their_own_completions() {
    with_soft_device(|domain, port| {
        let mut fleet = Fleet::new(&domain, &port, &Limits::default(), 1_000);
        assert_eq!(fleet.exchange(5_000, 1_000), 0, "completions of other pairs");
        assert_eq!(fleet.exchange(500, 1), 0, "completions of other pairs");
        assert_eq!(fleet.poller.unknown_completions(), 0);
        assert_eq!(fleet.queue.room(), 0);
        fleet.pairs.clear();
        while poll_each(&mut fleet.poller, |_| ()).unwrap() != 0 {}
        assert_eq!(fleet.queue.room(), fleet.queue.capacity(), "room that is not given back");
    });
}

/// Returns the bytes that the library keeps for one of `count` pairs, with its handle and without the soft device's
/// memory.
fn library_bytes<B: Brand>(domain: &ProtectionDomain<B>, port: &Port, count: usize, depth: u32) -> usize {
    let limits = Limits { sends: depth, receives: depth, ..Limits::default() };
    let (queue, mut poller) = queue_for(domain, &limits, count);
    let mut pairs = Vec::with_capacity(count);
    let ((), owned) = heap::attribute(|| {
        pairs.extend((0..count).map(|_| pair_to_itself(domain, port, &queue, &limits)));
        _ = poll_each(&mut poller, |completion| drop(Ended::of(completion)));
    });
    assert!(owned.device_bytes > owned.library_bytes / 4, "no symbols, so nobody knows whose memory it is");
    owned.library_bytes / count + size_of_val(&pairs[0])
}

#[test]
fn a_pair_takes_less_than_a_kibibyte_beside_its_slots() {
    with_soft_device(|domain, port| {
        const COUNT: usize = 500;
        let shallow = library_bytes(&domain, &port, COUNT, 8);
        // Each of the two ledgers of a pair now has 8 more slots. A slot is one word.
        let deep = library_bytes(&domain, &port, COUNT, 16);
        // The ledgers lie in chunks of memory, and a chunk can have room that no ledger uses yet. So the difference can
        // be off by a few bytes.
        assert!((deep - shallow).abs_diff(2 * 8 * size_of::<usize>()) <= 64, "a slot: {shallow} and {deep}");
        let beside = shallow - 2 * 8 * size_of::<usize>();
        assert!(beside < 1024, "{beside} bytes a pair beside its slots");
    });
}

#[test]
fn setting_pairs_up_and_down_again_leaves_nothing_behind() {
    let once = || with_soft_device(|domain, port| drop(Fleet::new(&domain, &port, &Limits::default(), 200)));
    once();
    let before = heap::mine();
    once();
    assert_eq!(heap::mine(), before, "bytes that nobody owns");
}

#[test]
fn nothing_is_lost_between_64_threads_that_post_and_one_that_polls() {
    with_soft_device(|domain, port| {
        let Crowd { sent, received, out_of_order, unknown, missing, .. } = crowd(&domain, &port, 64, 2, 200);
        assert_eq!((sent, received), (12_800, 12_800));
        assert_eq!((out_of_order, unknown, missing), (0, 0, 0));
    });
}

#[test]
fn a_soak_with_faults_accounts_for_every_request_and_byte() {
    // This first run makes the allocations that a thread makes only once, so that the later runs do not count them.
    generation(0, 8, 500, 500);
    // A run with an odd seed ends with a failure of the completion queue.
    for seed in 1..=4 {
        let before = heap::mine();
        let tally = generation(seed, 8, 6_000, 2_000);
        assert_eq!(heap::mine(), before, "bytes that nobody owns, after world {seed}");
        assert!(tally.faults > 0 && tally.uncertain > 0 && tally.destroyed > 0, "a soak without faults: {tally:?}");
    }
}

#[test]
fn threads_that_break_pairs_while_another_polls_lose_nothing() {
    for seed in 1..=4 {
        let tally = race(seed, 4, 20);
        assert!(tally.succeeded > 0 && tally.failed + tally.destroyed > 0, "{tally:?}");
    }
}
