//! Every interleaving of a poster and a retirer on two threads.
#![allow(unsafe_code, reason = "keeps the promises that the methods require")]
use super::*;
use crate::inflight::{Completed, Quiescent};
use crate::sync::{Arc, AtomicU32, Ordering};
use loom::thread;

/// The proof for a request of these tests, which have no device.
fn done(id: u64) -> Completed {
    Completed::without_device(id)
}

fn new<T>(depth: u32, first: u64) -> (Poster<T>, Retirer<T>) {
    ledger(&std::sync::Arc::default(), depth, first, Origin::default())
}

/// Takes values until `wanted` of them are out, and checks that they come in order.
fn retire(retirer: &mut Retirer<u32>, wanted: u32) {
    let mut next = 0;
    while next < wanted {
        match retirer.take(&Quiescent::without_device()) {
            Some(value) => {
                assert_eq!(value, next);
                next += 1;
            }
            None => thread::yield_now(),
        }
    }
}

#[test]
fn no_value_is_lost_or_taken_twice() {
    loom::model(|| {
        let (mut poster, mut retirer) = new(2, 0);
        let posting = thread::spawn(move || {
            for value in 0..3 {
                while poster.try_push(value).is_err() {
                    thread::yield_now();
                }
            }
        });
        retire(&mut retirer, 3);
        posting.join().unwrap();
        assert_eq!(retirer.take(&Quiescent::without_device()), None);
    });
}

#[test]
fn a_value_taken_back_is_never_seen_by_the_retirer() {
    loom::model(|| {
        let (mut poster, mut retirer) = new(2, 0);
        let (sent, completed) = (Arc::new(AtomicU32::new(0)), ());
        let device = Arc::clone(&sent);
        let posting = thread::spawn(move || {
            let () = completed;
            poster.try_push(0).unwrap();
            device.store(1, Ordering::Release);
            poster.try_push(7).unwrap();
            // SAFETY: this model's device was not given the newest request: it has only the first.
            assert_eq!(unsafe { poster.take_back() }, Some(7));
            poster.try_push(1).unwrap();
            device.store(2, Ordering::Release);
        });
        for (count, index) in [(1, 0), (2, 1)] {
            while sent.load(Ordering::Acquire) < count {
                thread::yield_now();
            }
            assert_eq!(retirer.retire(after(0, index)), Some((index, 0)));
        }
        posting.join().unwrap();
    });
}

/// A batch is staged and taken back while the poller polls; then the pair is destroyed. The poller must not find the
/// value that was taken back.
#[test]
fn a_value_taken_back_is_never_an_orphan() {
    loom::model(|| {
        let (mut poster, mut retirer) = new(4, 0);
        poster.try_push(0).unwrap();
        let destroyed = Arc::new(AtomicU32::new(0));
        let destroy = Arc::clone(&destroyed);
        let posting = thread::spawn(move || {
            poster.try_push(7).unwrap();
            // SAFETY: this model's device was not given the request.
            assert_eq!(unsafe { poster.take_back() }, Some(7));
            drop(poster);
            destroy.store(1, Ordering::Release);
        });
        assert_eq!(retirer.retire(0), Some((0, 0)));
        while destroyed.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        assert_eq!(retirer.take(&Quiescent::without_device()), None);
        posting.join().unwrap();
    });
}

/// A poller sets a flag before it takes a request out. A thread that then finds nothing in flight sees the flag, and
/// can clear it for good.
#[test]
fn a_detour_of_what_was_in_flight_is_not_set_after_it_was_cleared() {
    loom::model(|| {
        let (mut poster, mut retirer) = new(1, 0);
        let noted = poster.detour_of();
        poster.try_push(0).unwrap();
        let polling = thread::spawn(move || (noted.set(1), retirer.retire(0)).1);
        while poster.outstanding() != 0 {
            thread::yield_now();
        }
        poster.detour_of().clear(1);
        assert_eq!((polling.join().unwrap(), poster.detour()), (Some((0, 0)), 0));
    });
}

/// One thread clears its flag while another thread sets a different flag.
#[test]
fn a_detour_that_is_set_beside_one_that_is_cleared_stays() {
    loom::model(|| {
        let (mut poster, _retirer) = new::<u32>(1, 0);
        poster.detour_of().set(2);
        let failing = poster.detour_of();
        let polling = thread::spawn(move || failing.set(1));
        poster.detour_of().clear(2);
        polling.join().unwrap();
        assert_eq!((poster.detour(), poster.next().if_free(false).is_some()), (1, false));
    });
}

/// The end that is dropped last frees the ledger, after the last read by the other end.
#[test]
fn a_ledger_is_freed_after_the_last_look_at_it() {
    loom::model(|| {
        let (mut poster, mut retirer) = new(1, 0);
        poster.try_push(7).unwrap();
        let polling = thread::spawn(move || assert_eq!(retirer.take(&Quiescent::without_device()), Some(7)));
        drop(poster);
        polling.join().unwrap();
    });
}

/// A sole value is taken back. The next value is a sole value with the same id.
#[test]
fn a_value_alone_that_is_taken_back_is_never_seen_by_the_retirer() {
    loom::model(|| {
        let (mut poster, mut retirer) = new(1, 0);
        let sent = Arc::new(AtomicU32::new(0));
        let device = Arc::clone(&sent);
        let posting = thread::spawn(move || {
            poster.try_push(7).unwrap();
            // SAFETY: this model's device was not given the request.
            assert_eq!(unsafe { poster.take_back() }, Some(7));
            poster.try_push(0).unwrap();
            device.store(1, Ordering::Release);
            while poster.try_push(1).is_err() {
                thread::yield_now();
            }
            device.store(2, Ordering::Release);
        });
        for (count, value) in [(1, 0), (2, 1)] {
            while sent.load(Ordering::Acquire) < count {
                thread::yield_now();
            }
            assert_eq!(retirer.lend().take_if_oldest(done(after(0, value))), Some(value));
        }
        posting.join().unwrap();
    });
}

/// Values that are taken out together begin with the sole value, while the poster goes on posting.
#[test]
fn a_row_begins_with_what_was_alone() {
    loom::model(|| {
        let (mut poster, mut retirer) = new(2, 0);
        poster.try_push(0).unwrap();
        poster.try_push(1).unwrap();
        let posting = thread::spawn(move || {
            while poster.try_push(2).is_err() {
                thread::yield_now();
            }
        });
        let mut taken = Vec::new();
        let mut prefix = retirer.lend().prefix_to(done(STEP)).unwrap();
        prefix.each_before_last(|_, value| taken.push(value));
        taken.push(prefix.into_last());
        assert_eq!(taken, [0, 1]);
        posting.join().unwrap();
        assert_eq!(
            (retirer.take(&Quiescent::without_device()), retirer.take(&Quiescent::without_device())),
            (Some(2), None)
        );
    });
}

#[test]
fn a_completion_retires_the_unsignalled_before_it() {
    loom::model(|| {
        let (mut poster, mut retirer) = new(2, 0);
        let rung = Arc::new(AtomicU32::new(0));
        let bell = Arc::clone(&rung);
        let posting = thread::spawn(move || {
            poster.try_push(0).unwrap();
            poster.try_push(1).unwrap();
            bell.store(1, Ordering::Release);
        });
        while rung.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        assert_eq!((retirer.retire(STEP), retirer.retire(STEP)), (Some((0, 1)), Some((1, 0))));
        posting.join().unwrap();
    });
}
