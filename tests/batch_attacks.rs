//! Attacks on batches of whole vectors and on what brings their buffers back: no buffer is the program's while the device has it, and
//! none comes back twice.

mod common;

use common::{Link, PATIENCE, context};
use interlock::{Buffer, RemoteAll, WorkRequest};
use std::collections::HashSet;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

interlock::domain! {
    struct Nested;
    struct Forgotten;
}

fn addresses<B: interlock::Brand>(buffers: &[Buffer<B>]) -> HashSet<usize> {
    buffers.iter().map(|buffer| buffer.as_ptr().addr()).collect()
}

/// The thread lends one stage. A batch within the closure that makes another's requests, on another pair, panics or not, gets none of
/// it, and the outer one goes on with its own.
#[test]
fn a_batch_within_the_making_of_another_takes_nothing_of_it() {
    let domain = context().named_domain(Nested).unwrap();
    for panics in [false, true] {
        let Link { mut left, mut right, mut poller, .. } = Link::new(domain.clone(), 64);
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 2]).unwrap();
        let [outer, inner] = [0, 8].map(|at| region.remote().slice(at..at + 8).unwrap());
        let fresh = |value: u8| {
            let mut buffer = domain.buffer(8).unwrap();
            buffer.fill(value);
            buffer
        };
        let (mut items, mut others): (Vec<_>, Vec<_>) = ((0..40).map(fresh).collect(), (100..140).map(fresh).collect());
        let all: HashSet<usize> = addresses(&items).union(&addresses(&others)).copied().collect();
        let mut made = 0;
        left.batch(|batch| {
            let write = |buffer| {
                made += 1;
                if made == 20 {
                    let ended = catch_unwind(AssertUnwindSafe(|| {
                        right.batch(|within| {
                            within.post_all(&mut others, |buffer| WorkRequest::write(buffer, &inner)).unwrap();
                            assert!(!panics, "in the program's code");
                        })
                    }));
                    assert_eq!(ended.is_err(), panics);
                }
                WorkRequest::write(buffer, &outer)
            };
            assert_eq!(batch.post_all(&mut items, write).unwrap(), 40);
        })
        .unwrap();
        // What was given up in the inner batch had not been handed over, and is gone; one more retires the rest.
        let last = fresh(0xff);
        let last_address = last.as_ptr().addr();
        right.post_write(last, &inner).unwrap();
        let (mut back, start) = (Vec::new(), Instant::now());
        while !(addresses(&back).contains(&last_address) && left.sends_in_flight() == 0) {
            poller.poll_retired(|retired| retired.into_buffers(&mut back).unwrap()).unwrap();
            assert!(start.elapsed() < PATIENCE, "{} came back", back.len());
        }
        assert_eq!((left.sends_in_flight(), right.sends_in_flight()), (0, 0));
        let seen = addresses(&back);
        assert_eq!(seen.len(), back.len(), "a buffer came back twice");
        assert!(
            back.iter().all(|buffer| all.contains(&buffer.as_ptr().addr()) || buffer.as_ptr().addr() == last_address)
        );
        assert_eq!(back.len(), if panics { 40 + 32 + 1 } else { 81 });
        // Each still holds what was sent from it: nobody wrote to it meanwhile.
        assert!(back.iter().all(|buffer| buffer.iter().all(|&byte| byte == buffer[0])));
        assert_eq!([region.load(0).unwrap(), region.load(8).unwrap()], [u64::from_ne_bytes([39; 8]), u64::MAX]);
    }
}

/// What is forgotten, or panics, in the middle of a run neither frees a slot whose buffer is out nor gives a buffer twice.
#[test]
fn a_run_that_is_forgotten_gives_each_buffer_once() {
    let domain = context().named_domain(Forgotten).unwrap();
    let Link { mut left, right: _peer, mut poller, .. } = Link::new(domain.clone(), 8);
    let region = domain.register::<RemoteAll, _>(vec![0_u64; 1]).unwrap();
    let word = region.remote();
    for round in 0..12 {
        let mut items = domain.buffers(6, 8).unwrap();
        let all = addresses(&items);
        left.batch(|batch| batch.post_all(&mut items, |buffer| WorkRequest::write(buffer, &word))).unwrap().unwrap();
        let (mut back, mut disturbed, start) = (Vec::new(), false, Instant::now());
        while left.sends_in_flight() > 0 {
            assert!(start.elapsed() < PATIENCE);
            let polled = catch_unwind(AssertUnwindSafe(|| {
                poller.poll_retired(|mut retired| {
                    if !mem::replace(&mut disturbed, true) {
                        match round % 4 {
                            0 => return mem::forget(retired),
                            1 => {
                                retired.take_buffers(&mut back);
                                return mem::forget(retired);
                            }
                            2 => panic!("in the program's code"),
                            _ => (),
                        }
                    }
                    retired.into_buffers(&mut back).unwrap();
                })
            }));
            if let Ok(polled) = polled {
                polled.unwrap();
            }
        }
        let seen = addresses(&back);
        assert_eq!(seen.len(), back.len(), "a buffer came back twice");
        assert!(seen.is_subset(&all), "a buffer that nobody posted");
    }
    assert_eq!(poller.unknown_completions(), 0);
}
