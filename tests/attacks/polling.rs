//! Pollers, waits and drains: each completion comes once, and no wait exceeds its deadline.

use super::{DEPTH, LIMITS, Stage, all, assert_disjoint, connect, fails, join, settle, small};
use interlock::error::PollError;
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{Completion, CompletionQueue, Context, RemoteWrite, Status};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{mem, thread};
use support::{PATIENCE, Queues};

#[test]
fn two_pollers_of_one_pair_on_two_threads_never_give_a_buffer_twice() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    // The pollers are dropped here. Later, each thread takes the poller of one queue.
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

///
#[test]
fn r_6_a_failed_poll_is_not_a_completion() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(fails(Verb::PollCq));
    assert_eq!(stage.poller.poll().unwrap_err(), PollError::Failed);
    assert_eq!(stage.poller.poll().unwrap_err(), PollError::Failed, "from then on");
    assert_eq!(stage.right.receives_in_flight(), 1);
    // The device still writes to the receive in flight, so its memory must not be freed.
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
    // Once the pair is destroyed, the device is done with the receive.
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
        // Each completion of the busy pair triggers the next one.
        if let Ok(success) = completion.check() {
            if begun.elapsed() > Duration::from_millis(500) {
                overdue += 1;
            } else {
                busy.post_write(success.into_buffer().unwrap(), &region.remote()).unwrap();
            }
        }
    });
    // One completion may be late, because the system can pause this thread after `drain` has checked the deadline.
    assert!(overdue <= 1, "the time was over long ago: {outcome:?}");
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
        let waiting = scope.spawn(|| poller.wait(PATIENCE).map(Completion::check));
        thread::sleep(Duration::from_millis(100));
        drop(right);
        waiting.join().unwrap()
    });
    assert_eq!(failure.unwrap().unwrap_err().status, Status::Destroyed);
    assert!(begun.elapsed() < PATIENCE / 2, "it came when the time was over");
}

/// S-3: a completion that was returned never reads from the device again.
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
    // The poller takes all six completions from the device and returns one.
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

support::also_extended![
    two_pollers_of_one_pair_on_two_threads_never_give_a_buffer_twice,
    r_6_a_failed_poll_is_not_a_completion,
    r_7_a_drain_never_waits_longer_than_it_was_told,
    a_drain_never_waits_longer_because_others_are_busy,
    a_timeout_that_never_ends_never_panics,
    a_wait_never_sleeps_through_the_end_of_a_pair,
    s_3_a_completion_never_depends_on_what_it_came_from,
    s_4_a_queue_never_has_two_pollers,
    completions_in_the_pollers_hands_never_come_twice,
];
