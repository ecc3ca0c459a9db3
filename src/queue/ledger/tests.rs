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
