//! A pair that is brought up many times: split, swapped with others, in transitions that fail, and after a reset with
//! requests from before the reset.

use super::{DEPTH, LIMITS, Stage, all, connect, fails, join, settle, small};
use interlock::error::{CreateError, TransitionFailure};
use interlock::number::Qkey;
use interlock::queue::Posting;
use interlock::soft::{Fabric, Fault, Verb};
use interlock::state::DeviceState;
use interlock::{
    AnyQueuePair, Completion, Context, Limits, PostError, QueuePair, RemoteWrite, Reset, Status, Work, WorkRequest,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{mem, thread};
use support::Queues;
use zerocopy::IntoBytes;

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

/// A pair fails before each reset. Another thread polls the failures before, during or after the reset.
#[test]
fn a_failure_that_another_thread_polls_never_breaks_the_next_life() {
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev").unwrap().checked_domain().unwrap();
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
                // In some rounds no receive is in flight at the reset, so the pair keeps its ledgers. In the other
                // rounds the pair gets new ledgers.
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

/// One word records both that a pair is broken and how it posts. An atomic write can be posted in one way only, so it
/// shows whether the word survives.
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

/// A pair is a few words, which move by value. Wherever those words go, and even if they are forgotten, a request stays
/// with the pair that posted it.
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
    // The pair in `two` has a send in flight. The pair in `one` takes its place, and the old pair is forgotten.
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
        match success.into_work() {
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
    // Only the receive that was left comes back, as destroyed. No request of the batch comes back.
    let left: Vec<_> = all(&mut poller).into_iter().map(|completion| completion.check().unwrap_err().status).collect();
    assert_eq!(left, [Status::Destroyed]);
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
fn a_pair_never_says_ready_when_its_transition_failed() {
    let stage = stage!();
    let pair = stage.left.into_reset().unwrap();
    stage.fabric.inject(fails(Verb::ModifyQp));
    let error = pair.into_init(&stage.port).unwrap_err();
    let pair: QueuePair<_, Reset> = error.queue_pair;
    assert_eq!(pair.query_state().unwrap(), DeviceState::Reset);
    let pair = pair.into_init(&stage.port).unwrap();
    let myself = pair.endpoint();
    // The second of the two transitions of `connect` fails.
    stage.fabric.inject(Fault::VerbFails { verb: Verb::ModifyQp, after: 1, count: 1, errno: libc::EINVAL });
    let error = pair.connect(&myself).unwrap_err();
    let AnyQueuePair::ReadyToReceive(pair) = error.queue_pair else { panic!("where it got to") };
    assert_eq!(pair.query_state().unwrap(), DeviceState::ReadyToReceive);
}

/// A datagram pair resumes its sends after a failure, while another thread polls the failure of a receive. The pair
/// must not count as working, and the failed send must not be reported as the cause.
#[test]
fn sends_that_go_on_never_hide_that_a_receive_has_failed() {
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev").unwrap().checked_domain().unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.queue(4 * LIMITS.completions()).unwrap();
    for _ in 0..if cfg!(miri) { 4 } else { 200 } {
        let pair = || domain.datagram(&queue, &LIMITS).unwrap().into_init(&port).unwrap().open().unwrap();
        let (mut left, mut right) = (pair(), pair());
        let to = |endpoint| domain.recipient(&port, &endpoint, Qkey::USUAL).unwrap();
        let (to_left, to_right) = (to(left.endpoint()), to(right.endpoint()));
        fabric.inject(Fault::RequestsFail { count: 1 });
        left.post_send_to(small(&domain), &to_right).unwrap();
        let failure = all(&mut poller).pop().unwrap().check().unwrap_err();
        assert_eq!(failure.status, Status::LocalProtection);
        left.post_receive(domain.buffer(41).unwrap()).unwrap();
        let left = left.into_sqe().unwrap();

        let (resumed, failure) = thread::scope(|scope| {
            let polling = scope.spawn(|| {
                right.post_send_to(small(&domain), &to_left).unwrap();
                loop {
                    let completion = poller.poll().unwrap().map(Completion::check);
                    if let Some(Err(failure)) = completion {
                        break failure;
                    }
                    thread::yield_now();
                }
            });
            (left.resume(), polling.join().unwrap())
        });
        assert_eq!((failure.status, failure.first_failure), (Status::LocalLength, None));
        assert_eq!(failure.into_buffer().unwrap().capacity(), 41);
        match resumed {
            Ok(mut left) => {
                assert_eq!((left.is_broken(), left.first_failure()), (true, Some(Status::LocalLength)));
                let refused = left.post_send_to(small(&domain), &to_right).unwrap_err();
                assert!(matches!(refused, PostError::Broken { .. }), "{refused:?}");
                let refused = left.post_receive(domain.buffer(41).unwrap()).unwrap_err();
                assert!(matches!(refused, PostError::Broken { .. }), "{refused:?}");
            }
            // The receive failed before the pair could resume.
            Err(error) => assert!(error.queue_pair.is_broken()),
        }
        drop(right);
        all(&mut poller);
    }
    assert_eq!((queue.room(), poller.unknown_completions()), (queue.capacity(), 0));
}

support::also_extended![
    an_advance_that_panics_never_leaves_half_a_pair,
    halves_of_two_pairs_never_make_one,
    halves_dropped_on_two_threads_never_destroy_twice_nor_lose_a_buffer,
    a_failure_that_another_thread_polls_never_breaks_the_next_life,
    completions_of_an_earlier_life_never_retire_requests_of_the_next,
    a_reset_that_is_destroyed_unsettled_never_returns_its_lease_twice,
    a_pair_of_sessions_never_posts_another_way_in_a_later_life,
    a_pair_that_was_swapped_or_forgotten_never_gives_back_what_another_posted,
    a_refused_reset_never_changes_anything,
    a_work_queue_is_never_deeper_than_what_was_leased,
    a_pair_never_says_ready_when_its_transition_failed,
    sends_that_go_on_never_hide_that_a_receive_has_failed,
];
