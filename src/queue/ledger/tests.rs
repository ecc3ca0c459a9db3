//! What goes into a ledger comes out once, in order.

use super::*;

const NAME: u64 = 0x15_5555;

fn new<T>(depth: u32, first: u64) -> (Poster<T>, Retirer<T>) {
    ledger(depth, first, Origin::default())
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
    assert_eq!((retirer.take(), retirer.take(), retirer.take()), (Some(2), Some(3), None));
}

#[test]
fn a_value_that_the_device_never_got_is_taken_back() {
    let (mut poster, mut retirer) = new(2, NAME);
    poster.try_push("kept").unwrap();
    poster.try_push("refused").unwrap();
    // SAFETY: there is no device.
    assert_eq!(unsafe { poster.take_back() }, Some("refused"));
    assert_eq!((retirer.take(), retirer.take()), (Some("kept"), None));
    // SAFETY: there is no device.
    assert_eq!(unsafe { poster.take_back() }, None);
}

#[test]
fn what_is_taken_in_a_row_is_accounted_for_when_its_taker_panics() {
    let (mut poster, mut retirer) = new(4, NAME);
    for value in 0..4 {
        poster.try_push(value).unwrap();
    }
    let (mut taken, mut oldest) = (Vec::new(), NAME);
    let taking = std::panic::AssertUnwindSafe(|| {
        // SAFETY: four are in flight.
        unsafe {
            retirer.lend().take_each(&mut oldest, after(NAME, 3), |_, value| {
                taken.push(value);
                assert_ne!(value, 1);
            });
        }
    });
    assert!(std::panic::catch_unwind(taking).is_err());
    assert_eq!((taken, oldest, poster.outstanding()), (vec![0, 1], after(NAME, 2), 2));
    assert_eq!((retirer.take(), retirer.take(), retirer.take()), (Some(2), Some(3), None));
}

#[test]
fn ids_come_round_without_confusion() {
    let first = NAME.wrapping_sub(100 * STEP);
    let (mut poster, mut retirer) = new(4, first);
    for round in 0..200 {
        let (id, ahead) = (poster.next_id(), poster.id_ahead(1));
        poster.try_push(round).unwrap();
        poster.try_push(round).unwrap();
        assert_eq!(retirer.retire(poster.next_id()), None, "not posted yet");
        let odd = if round % 2 == 0 { ahead } else { id };
        assert_eq!(retirer.retire(odd), Some((round, between(id, odd))));
        assert_eq!(retirer.retire(ahead), Some((round, 0)));
        assert_eq!((retirer.retire(id), retirer.retire(ahead)), (None, None), "retired already");
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
        assert_eq!(retirer.lend().oldest_before(id).is_some(), counts, "{bit}");
        assert_eq!(retirer.lend().oldest_before(id.wrapping_add(STEP)).is_some(), counts, "{bit}");
    }
    assert!(retirer.lend().oldest_before(NAME).is_some());
}

#[test]
fn the_short_way_is_open_while_there_is_room() {
    for depth in [1, 2, 3, 4, MAX_DEPTH] {
        let (mut poster, mut retirer) = new(depth, NAME.wrapping_sub(2 * STEP));
        let most = depth.min(4);
        for round in 0..3 {
            for posted in 0..most {
                let next = poster.next();
                assert_eq!((poster.free(), poster.outstanding()), (depth - posted, posted));
                assert_eq!((next.is_open(false), next.is_open(true)), (true, depth - posted > 1), "{depth}, {round}");
                assert_eq!((next.has_room(false), next.has_room(true)), (true, depth - posted > 1));
                poster.try_push(round).unwrap();
            }
            let next = poster.next();
            assert_eq!((next.is_open(false), next.has_room(false)), (depth > most, depth > most));
            assert_eq!(poster.try_push(9).is_err(), depth == most);
            while retirer.take().is_some() {}
        }
    }
}

#[test]
fn a_detour_closes_the_short_way_until_all_of_it_is_cleared() {
    let (mut poster, mut retirer) = new(2, NAME);
    let detour = poster.detour_of();
    detour.set(0);
    assert!(poster.next().is_open(true));
    detour.set(2);
    detour.set(4);
    for (cleared, left) in [(1, 6), (2, 4), (2, 4), (4, 0), (7, 0)] {
        poster.try_push(0).unwrap();
        // It takes no room away.
        let next = poster.next();
        assert_eq!((next.is_open(false), next.has_room(false), next.has_room(true)), (false, true, false));
        retirer.take();
        detour.clear(cleared);
        assert_eq!((poster.detour(), detour.bits(), poster.free()), (left, left, 2));
        if left == 0 {
            detour.set(1);
            detour.clear(1);
            assert!(poster.next().is_open(true));
            detour.set(1);
        }
    }
}

#[test]
fn what_the_user_of_a_poster_keeps_is_dropped_with_it() {
    let kept = std::rc::Rc::new(());
    let (poster, retirer) = new::<u8>(5, NAME);
    let mut poster = poster.with((7_u64, std::rc::Rc::clone(&kept)));
    poster.own_mut().0 += 1;
    assert_eq!((poster.own().0, std::rc::Rc::strong_count(&kept)), (8, 2));
    let detour = poster.detour_of();
    drop(poster);
    assert_eq!(std::rc::Rc::strong_count(&kept), 1);
    // The ledger is there as long as anybody has it.
    detour.set(1);
    drop(detour);
    assert_eq!(retirer.oldest(), NAME);
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
        assert!(poster.next().is_open(true));
    }
    poster.try_push(0).unwrap();
    poster.try_push(1).unwrap();
    assert_eq!((poster.try_push(2), retirer.take(), retirer.take()), (Err(2), Some(0), Some(1)));
}

/// What the poster reads without an atomic, three others look at; whoever goes last frees the ledger.
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
            match retirer.take() {
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
