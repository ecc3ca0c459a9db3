//! Values that go into a ledger come out once, in order.
#![allow(unsafe_code, reason = "keeps the promises that the methods require")]

use super::*;
use crate::inflight::{Completed, Quiescent};
use core::mem::ManuallyDrop;
use std::sync::Arc;

/// The proof for a request of these tests, which have no device.
fn done(id: u64) -> Completed {
    Completed::without_device(id)
}

const NAME: u64 = 0x15_5555;

fn new<T>(depth: u32, first: u64) -> (Poster<T>, Retirer<T>) {
    ledger(&Arc::default(), depth, first, Origin::default())
}

#[test]
fn values_come_out_in_the_order_in_which_they_went_in() {
    let (mut poster, mut retirer) = new(3, NAME);
    for value in 0..3 {
        poster.try_push(value).unwrap();
    }
    assert_eq!(poster.try_push(9), Err(9));
    let second = after(NAME, 1);
    assert_eq!((retirer.retire(second), retirer.retire(second)), (Some((0, 1)), Some((1, 0))));
    assert_eq!(poster.outstanding(), 1);
    poster.try_push(3).unwrap();
    assert_eq!(retirer.retire(second), None, "retired already");
    assert_eq!(retirer.retire(after(NAME, 4)), None, "not posted yet");
    assert_eq!(
        (
            retirer.take(&Quiescent::without_device()),
            retirer.take(&Quiescent::without_device()),
            retirer.take(&Quiescent::without_device())
        ),
        (Some(2), Some(3), None)
    );
}

#[test]
fn a_value_that_the_device_never_got_is_taken_back() {
    let (mut poster, mut retirer) = new(4, NAME);
    for kept in 0..3 {
        for value in 0..=kept {
            poster.try_push(value).unwrap();
        }
        // SAFETY: no device was given the request.
        assert_eq!(unsafe { poster.take_back() }, Some(kept));
        for value in 0..kept {
            assert_eq!(retirer.take(&Quiescent::without_device()), Some(value));
        }
        // SAFETY: no device was given a request.
        assert_eq!((retirer.take(&Quiescent::without_device()), unsafe { poster.take_back() }), (None, None));
    }
}

#[test]
fn a_value_alone_comes_out_once_whichever_way_it_is_taken() {
    type Way = fn(&mut Retirer<u32>, u64) -> Option<u32>;
    let ways: [Way; 5] = [
        |retirer, id| retirer.lend().take_if_oldest(done(id)),
        |retirer, _| retirer.take(&Quiescent::without_device()),
        |retirer, id| retirer.retire(id).map(|(value, _)| value),
        |retirer, id| {
            let mut prefix = retirer.lend().prefix_to(done(id))?;
            prefix.each_before_last(|_, _| panic!("it is alone"));
            Some(prefix.into_last())
        },
        |retirer, id| {
            let mut prefix = retirer.lend().prefix_to(done(id))?;
            // The first `row_to` takes nothing out, so the second one lends the same row.
            let len = prefix.row_to(after(id, 1)).len();
            // SAFETY: the value is in flight, so its cell belongs to this retirer. `take` leaves a copy of the value in
            // the cell. Nobody takes that copy, because `took` gives the cell back to the poster.
            let value = unsafe { prefix.row_to(after(id, 1))[0].take() };
            prefix.took(1);
            (len == 1).then_some(value)
        },
    ];
    let (mut poster, mut retirer) = new(2, NAME.wrapping_sub(5 * STEP));
    for round in 0..20 {
        for (value, take) in ways.iter().enumerate() {
            let id = poster.next_id();
            poster.try_push(value as u32).unwrap();
            assert_eq!(retirer.lend().take_if_oldest(done(after(id, 1))), None, "not posted yet");
            assert_eq!(retirer.lend().take_if_oldest(done(id.wrapping_sub(STEP))), None, "retired already");
            assert_eq!(take(&mut retirer, id), Some(value as u32), "{round}");
            assert_eq!(
                (retirer.lend().take_if_oldest(done(id)), retirer.take(&Quiescent::without_device())),
                (None, None)
            );
            assert_eq!((retirer.lend().take_if_oldest(done(poster.next_id())), poster.outstanding()), (None, 0));
        }
    }
}

/// Values that are written before they are published are never the sole value. Their ids may be those of a sole value
/// that was taken back.
#[test]
fn what_is_written_ahead_and_what_is_alone_have_their_own_places() {
    let (mut poster, mut retirer) = new(4, NAME);
    for sole in [false, true, false, true, true] {
        let first = poster.next_id();
        poster.try_push(9).unwrap();
        // SAFETY: no device was given the request.
        assert_eq!(unsafe { poster.take_back() }, Some(9));
        if sole {
            poster.try_push(0).unwrap();
        }
        for value in u32::from(sole)..3 {
            // SAFETY: there is room, and nothing is written at this id.
            unsafe { poster.write_at(after(first, value), value) };
        }
        assert_eq!(retirer.has_any(), sole, "not yet published");
        // SAFETY: all three values were written above.
        unsafe { poster.publish(after(first, 3)) };
        for value in 0..3 {
            assert_eq!(retirer.lend().take_if_oldest(done(after(first, value))), Some(value));
        }
        assert!(!retirer.has_any());
    }
}

#[test]
fn what_is_taken_in_a_row_is_accounted_for_when_its_taker_panics() {
    let (mut poster, mut retirer) = new(4, NAME);
    for value in 0..4 {
        poster.try_push(value).unwrap();
    }
    let mut taken = Vec::new();
    let mut prefix = retirer.lend().prefix_to(done(after(NAME, 3))).unwrap();
    let taking = std::panic::AssertUnwindSafe(|| {
        prefix.each_before_last(|_, value| {
            taken.push(value);
            assert_ne!(value, 1);
        });
    });
    assert!(std::panic::catch_unwind(taking).is_err());
    assert_eq!((taken, prefix.count_before_last(), poster.outstanding()), (vec![0, 1], 1, 2));
    assert_eq!(
        (
            retirer.take(&Quiescent::without_device()),
            retirer.take(&Quiescent::without_device()),
            retirer.take(&Quiescent::without_device())
        ),
        (Some(2), Some(3), None)
    );
}

#[test]
fn ids_come_round_without_confusion() {
    let rounds: u32 = if cfg!(miri) { 40 } else { 200 };
    let first = NAME.wrapping_sub(u64::from(rounds) / 2 * STEP);
    let (mut poster, mut retirer) = new(4, first);
    for round in 0..rounds {
        let (id, later) = (poster.next_id(), poster.id_after(1));
        poster.try_push(round).unwrap();
        poster.try_push(round).unwrap();
        assert_eq!(retirer.retire(poster.next_id()), None, "not posted yet");
        let odd = if round % 2 == 0 { later } else { id };
        assert_eq!(retirer.retire(odd), Some((round, between(id, odd))));
        assert_eq!(retirer.retire(later), Some((round, 0)));
        assert_eq!((retirer.retire(id), retirer.retire(later)), (None, None), "retired already");
    }
}

#[test]
fn an_id_of_another_queue_is_not_in_flight() {
    let (mut poster, mut retirer) = new(4, NAME);
    for value in 0..4 {
        poster.try_push(value).unwrap();
    }
    for bit in 0..u64::BITS {
        let (id, counts) = (NAME ^ 1 << bit, bit == NAME_BITS || bit == NAME_BITS + 1);
        assert_eq!(retirer.lend().has(id), counts, "{bit}");
        assert_eq!(retirer.lend().has(id.wrapping_add(STEP)), counts, "{bit}");
    }
    assert!(retirer.lend().has(NAME));
}

#[test]
fn the_short_way_is_open_while_there_is_room() {
    // Under Miri the longest ring takes too long.
    let greatest = if cfg!(miri) { 1 << 10 } else { MAX_DEPTH };
    for depth in [1, 2, 3, 4, greatest] {
        let (mut poster, mut retirer) = new(depth, NAME.wrapping_sub(2 * STEP));
        let most = depth.min(4);
        for round in 0..3 {
            for posted in 0..most {
                assert_eq!((poster.free(), poster.outstanding()), (depth - posted, posted));
                assert_eq!(
                    (poster.next().if_free(false).is_some(), poster.next().if_free(true).is_some()),
                    (true, depth - posted > 1),
                    "{depth}, {round}"
                );
                assert_eq!((poster.next().has_room(false), poster.next().has_room(true)), (true, depth - posted > 1));
                poster.try_push(round).unwrap();
            }
            assert_eq!(
                (poster.next().if_free(false).is_some(), poster.next().has_room(false)),
                (depth > most, depth > most)
            );
            assert_eq!(poster.try_push(9).is_err(), depth == most);
            while retirer.take(&Quiescent::without_device()).is_some() {}
        }
    }
}

#[test]
fn a_detour_closes_the_short_way_until_all_of_it_is_cleared() {
    let (mut poster, mut retirer) = new(2, NAME);
    let detour = poster.detour_of();
    detour.set(0);
    assert!(poster.next().if_free(true).is_some());
    detour.set(2);
    detour.set(4);
    for (cleared, left) in [(1, 6), (2, 4), (2, 4), (4, 0), (7, 0)] {
        poster.try_push(0).unwrap();
        // `if_free` gives no slot while a flag of the detour is set. `has_room` ignores the flags. One of the two slots
        // is free. `has_room(false)` needs one free slot, and `has_room(true)` needs two.
        assert_eq!(
            (poster.next().if_free(false).is_some(), poster.next().has_room(false), poster.next().has_room(true)),
            (false, true, false)
        );
        retirer.take(&Quiescent::without_device());
        detour.clear(cleared);
        assert_eq!((poster.detour(), detour.bits(), poster.free()), (left, left, 2));
        if left == 0 {
            detour.set(1);
            detour.clear(1);
            assert!(poster.next().if_free(true).is_some());
            detour.set(1);
        }
    }
}

#[test]
fn what_the_user_of_a_poster_keeps_is_dropped_with_it() {
    let kept = std::rc::Rc::new(());
    let (poster, retirer) = new::<u8>(5, NAME);
    let mut poster = poster.with((7_u64, std::rc::Rc::clone(&kept)));
    poster.user_data_mut().0 += 1;
    assert_eq!((poster.user_data().0, std::rc::Rc::strong_count(&kept)), (8, 2));
    let detour = poster.detour_of();
    drop(poster);
    assert_eq!(std::rc::Rc::strong_count(&kept), 1);
    // The ledger is still alive: `detour` and `retirer` hold it.
    detour.set(1);
    drop(detour);
    assert_eq!(retirer.oldest(), NAME);
}

/// Nobody knows whether the device is done with such a value.
#[test]
fn what_is_left_in_a_ledger_is_not_dropped_with_it() {
    for left in 1..4 {
        let value = std::rc::Rc::new(());
        let (mut poster, mut retirer) = new(4, NAME);
        for _ in 0..left + 1 {
            assert!(poster.try_push(std::rc::Rc::clone(&value)).is_ok());
        }
        assert!(retirer.take(&Quiescent::without_device()).is_some());
        if left == 1 {
            // In this round, the value that is left must be a sole value. So empty the ledger, and post a value again.
            assert!(retirer.take(&Quiescent::without_device()).is_some());
            assert!(poster.try_push(std::rc::Rc::clone(&value)).is_ok());
        }
        drop((poster, retirer));
        assert_eq!(std::rc::Rc::strong_count(&value), 1 + left);
        for _ in 0..left {
            // SAFETY: the ledger has leaked `left` references, and this test drops each of them once.
            unsafe { std::rc::Rc::decrement_strong_count(std::rc::Rc::as_ptr(&value)) };
        }
    }
}

#[test]
fn no_detour_takes_from_the_depth() {
    let (mut poster, mut retirer) = new(2, NAME);
    let detour = poster.detour_of();
    for bits in [STEP as u32, u32::MAX] {
        detour.set(bits);
        assert_eq!((poster.free(), poster.detour()), (2, bits & (STEP as u32 - 1)));
        detour.clear(bits);
        assert_eq!((poster.free(), poster.detour()), (2, 0));
        assert!(poster.next().if_free(true).is_some());
    }
    poster.try_push(0).unwrap();
    poster.try_push(1).unwrap();
    assert_eq!(
        (poster.try_push(2), retirer.take(&Quiescent::without_device()), retirer.take(&Quiescent::without_device())),
        (Err(2), Some(0), Some(1))
    );
}

/// Three ends of a ledger are dropped on three threads, in any order. The last of them frees the ledger.
#[test]
fn the_ends_of_a_ledger_go_in_any_order_on_their_threads() {
    const COUNT: u32 = 6;
    let (poster, mut retirer) = new::<Box<u32>>(2, NAME.wrapping_sub(2 * STEP));
    let [detour, also] = [poster.detour_of(), poster.detour_of()];
    let kept = std::sync::Arc::new(());
    let mut poster = poster.with((std::sync::Arc::clone(&kept), also));
    let posting = std::thread::spawn(move || {
        for value in 0..COUNT {
            while !poster.next().has_room(false) {
                std::thread::yield_now();
            }
            poster.try_push(Box::new(value)).unwrap();
            assert!(poster.outstanding() <= 2);
        }
    });
    let breaking = std::thread::spawn(move || {
        detour.set(2);
        detour.clear(2);
        detour.set(1);
        detour.bits()
    });
    let polling = std::thread::spawn(move || {
        let mut next = 0;
        while next < COUNT {
            match retirer.take(&Quiescent::without_device()) {
                Some(value) => {
                    assert_eq!(*value, next);
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
    });
    assert_eq!(breaking.join().unwrap(), 1);
    polling.join().unwrap();
    posting.join().unwrap();
    assert_eq!(std::sync::Arc::strong_count(&kept), 1);
}

/// A generator of pseudo-random numbers: the same seed gives the same numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % sides
    }
}

/// Whatever the two ends do, in any order, each value comes out once, in the order of posting. Nothing else comes out.
#[test]
fn any_mix_of_what_the_two_ends_do_keeps_values_and_order() {
    use std::collections::VecDeque;
    use std::rc::Rc;
    for seed in 0..if cfg!(miri) { 6 } else { 400 } {
        let mut dice = Dice(seed);
        let depth = 1 + dice.roll(5);
        let (mut poster, mut retirer) = new::<Rc<u32>>(depth, NAME.wrapping_sub(u64::from(dice.roll(40)) * STEP));
        let (mut in_flight, mut next, mut made) = (VecDeque::new(), 0, Vec::new());
        let mut make = || {
            next += 1;
            made.push(Rc::new(next));
            made.last().map(Rc::clone).unwrap_or_default()
        };
        for _ in 0..if cfg!(miri) { 40 } else { 200 } {
            let (oldest, end) = (retirer.oldest(), poster.next_id());
            let len = in_flight.len() as u32;
            assert_eq!((poster.outstanding(), poster.free(), retirer.has_any()), (len, depth - len, len != 0));
            match dice.roll(10) {
                0..=2 => {
                    let value = make();
                    let wanted = *value;
                    match poster.try_push(value) {
                        Ok(()) => in_flight.push_back(wanted),
                        Err(_) => assert_eq!(len, depth),
                    }
                }
                3 => {
                    let count = dice.roll(depth - len + 1);
                    for at in 0..count {
                        let value = make();
                        in_flight.push_back(*value);
                        // SAFETY: `count` is at most the number of free cells, and each value gets an id of its own.
                        unsafe { poster.write_at(after(end, at), value) };
                    }
                    if dice.roll(3) == 0 {
                        in_flight.truncate(len as usize);
                        // SAFETY: these values were written just above, and are not published.
                        unsafe { poster.drop_unpublished(after(end, count)) };
                    } else {
                        // SAFETY: these values were written just above.
                        unsafe { poster.publish(after(end, count)) };
                    }
                }
                4 => {
                    // SAFETY: no device was given the request.
                    let newest = unsafe { poster.take_back() };
                    assert_eq!(newest.map(|value| *value), in_flight.pop_back());
                }
                5 => {
                    let id = after(oldest, dice.roll(depth + 2)).wrapping_sub(u64::from(dice.roll(2)) * STEP);
                    let is_oldest = id == oldest && len != 0;
                    let taken = retirer.lend().take_if_oldest(done(id)).map(|value| *value);
                    assert_eq!(taken, if is_oldest { in_flight.pop_front() } else { None });
                }
                6 => assert_eq!(retirer.take(&Quiescent::without_device()).map(|value| *value), in_flight.pop_front()),
                7 if len != 0 => {
                    let newest = end.wrapping_sub(STEP);
                    let mut prefix = retirer.lend().prefix_to(done(newest)).unwrap();
                    for (cell, wanted) in prefix.row_to(end).iter().zip(&in_flight) {
                        // SAFETY: the value is in flight. The copy is only read, and never dropped.
                        assert_eq!(**ManuallyDrop::new(unsafe { cell.take() }), *wanted);
                    }
                }
                8 if len != 0 => {
                    let mut prefix = retirer.lend().prefix_to(done(end.wrapping_sub(STEP))).unwrap();
                    let row = prefix.row_to(end);
                    let count = row.len() as u32;
                    for cell in row {
                        // SAFETY: the value is in flight, and the copy in the cell is not used any more.
                        let value = unsafe { cell.take() };
                        assert_eq!(Some(*value), in_flight.pop_front());
                    }
                    prefix.took(count);
                }
                9 if len != 0 => {
                    let (count, stop) = (dice.roll(len), dice.roll(depth + 2));
                    let mut prefix = retirer.lend().prefix_to(done(after(oldest, count))).unwrap();
                    let mut taken = 0;
                    let taking = std::panic::AssertUnwindSafe(|| {
                        prefix.each_before_last(|id, value| {
                            assert_eq!((id, Some(*value)), (after(oldest, taken), in_flight.pop_front()));
                            taken += 1;
                            if taken == stop {
                                std::panic::resume_unwind(Box::new(()));
                            }
                        });
                    });
                    let panicked = std::panic::catch_unwind(taking).is_err();
                    assert_eq!((panicked, prefix.count_before_last()), ((1..=count).contains(&stop), count - taken));
                    assert_eq!(retirer.oldest(), after(oldest, taken));
                }
                _ => {}
            }
        }
        while let Some(value) = retirer.take(&Quiescent::without_device()) {
            assert_eq!(Some(*value), in_flight.pop_front());
        }
        drop((poster, retirer));
        assert!(in_flight.is_empty() && made.iter().all(|value| Rc::strong_count(value) == 1), "{seed}");
    }
}
