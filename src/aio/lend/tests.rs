//! The lending protocol without a device: parsing, two honest sides, and a peer that lies about everything.

use super::holder::{Holder, Reception};
use super::owner::{Ended, NotLent, Over, Owner, Quota};
use super::record::{CONTROL_BYTES, Control, ControlError, GrantedRecord, Refusal};
use super::shared::{Answer, Core, Shared};
use super::violation::Violation;
use crate::memory::{RemoteAll, RemoteRead, RemoteRegion};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use support::Random;

const ROUNDS: u64 = if cfg!(miri) { 4 } else { 400 };

fn number(value: u64) -> NonZeroU64 {
    NonZeroU64::new(value).unwrap()
}

fn record(len_bytes: u64) -> GrantedRecord {
    GrantedRecord::new(RemoteRegion::<RemoteAll>::of_peer(0x1000, len_bytes, 7).unwrap().to_bytes()).unwrap()
}

/// A random number that is often 0, `u64::MAX` or small.
fn any_number(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => random.next(),
        _ => random.below(12) as u64,
    }
}

fn any_control(random: &mut Random) -> Control {
    let id = number(any_number(random).max(1));
    let duration = match random.below(3) {
        0 => Duration::MAX,
        1 => Duration::ZERO,
        _ => Duration::from_micros(random.next() >> 20),
    };
    match random.below(7) {
        0 => Control::Grant {
            id,
            answers: NonZeroU64::new(any_number(random)),
            duration,
            region: record(any_number(random).clamp(1, 1 << 40)),
        },
        1 => Control::Return { id },
        2 => Control::PassOn { id, to: random.next() },
        3 => Control::Returned { id, moved: random.one_in(2) },
        4 => {
            let rights = [2, 4, 8, 14][random.below(4)];
            Control::Ask { nonce: id, bytes: number(any_number(random).max(1)), rights, duration }
        }
        5 => Control::Refused { nonce: id, why: Refusal::Declined },
        _ => Control::Return { id },
    }
}

#[test]
fn each_message_says_the_same_on_the_other_side() {
    let mut random = Random::new(1);
    for _ in 0..ROUNDS {
        let control = any_control(&mut random);
        assert_eq!(Control::parse(&control.to_bytes()), Ok(control));
    }
    for why in [Refusal::Declined, Refusal::TooManyBytes, Refusal::TooManyGrants] {
        let refused = Control::Refused { nonce: number(9), why };
        assert_eq!(Control::parse(&refused.to_bytes()), Ok(refused));
    }
    assert_eq!(Control::parse(&Control::Bye.to_bytes()), Ok(Control::Bye));
}

#[test]
fn each_damaged_field_is_refused() {
    let damaged = |control: Control, edit: fn(&mut [u8; CONTROL_BYTES])| {
        let mut bytes = control.to_bytes();
        edit(&mut bytes);
        Control::parse(&bytes).unwrap_err()
    };
    let returns = Control::Return { id: number(1) };
    let asks = Control::Ask { nonce: number(1), bytes: number(1), rights: 2, duration: Duration::ZERO };
    let grants = Control::Grant { id: number(1), answers: None, duration: Duration::ZERO, region: record(8) };
    let refuses = Control::Refused { nonce: number(1), why: Refusal::Declined };
    assert_eq!(damaged(returns, |bytes| bytes[0] = 0), ControlError::Magic);
    assert_eq!(damaged(returns, |bytes| bytes[2] = 2), ControlError::Version { found: 2 });
    assert_eq!(damaged(returns, |bytes| bytes[3] = 0), ControlError::Kind(0));
    assert_eq!(damaged(returns, |bytes| bytes[3] = 8), ControlError::Kind(8));
    assert_eq!(damaged(returns, |bytes| bytes[6] = 1), ControlError::Field("reserved"));
    assert_eq!(damaged(returns, |bytes| bytes[15] = 0), ControlError::Field("id"));
    assert_eq!(damaged(returns, |bytes| bytes[63] = 1), ControlError::Field("reserved"));
    assert_eq!(damaged(asks, |bytes| bytes[4] = 1), ControlError::Field("rights"));
    assert_eq!(damaged(asks, |bytes| bytes[4] = 0), ControlError::Field("rights"));
    assert_eq!(damaged(asks, |bytes| bytes[23] = 0), ControlError::Field("nonce"));
    assert_eq!(damaged(asks, |bytes| bytes[31] = 0), ControlError::Field("bytes"));
    assert_eq!(damaged(refuses, |bytes| bytes[5] = 3), ControlError::Field("why"));
    assert!(matches!(damaged(grants, |bytes| bytes[40] = 0), ControlError::Region(_)));
    assert!(matches!(damaged(grants, |bytes| bytes[43] = 0), ControlError::Region(_)), "no rights");
    assert_eq!(Control::parse(&[0; 63]), Err(ControlError::Length { found: 63 }));
    let read_only = RemoteRegion::<RemoteRead>::of_peer(8, 8, 1).unwrap().to_bytes();
    assert_eq!(GrantedRecord::new(read_only).unwrap().rights(), 4);
}

#[test]
fn any_bytes_are_read_or_refused_and_what_is_read_is_written_the_same() {
    let mut random = Random::new(2);
    for _ in 0..50 * ROUNDS {
        let mut bytes = if random.one_in(4) { [0; CONTROL_BYTES] } else { any_control(&mut random).to_bytes() };
        for _ in 0..random.below(6) {
            bytes[random.below(CONTROL_BYTES)] = random.next() as u8;
        }
        let len = if random.one_in(8) { random.below(CONTROL_BYTES + 1) } else { CONTROL_BYTES };
        if let Ok(control) = Control::parse(&bytes[..len]) {
            assert_eq!(control.to_bytes(), bytes);
        }
    }
}

#[test]
fn a_grant_is_over_by_the_peer_and_ends_by_the_program_only() {
    let mut owner = Owner::new(Quota { bytes: 100, grants: 2 });
    owner.ask(number(1), 60).unwrap().unwrap();
    assert_eq!(owner.ask(number(1), 1), Err(Violation::Replayed));
    assert_eq!(owner.ask(number(2), 41), Ok(Err(Refusal::TooManyBytes)));
    assert_eq!(owner.lend(Some(number(1)), 101), Err(NotLent::OverQuota));
    let id = owner.lend(Some(number(1)), 80).unwrap();
    assert_eq!(owner.lend(Some(number(1)), 1), Err(NotLent::Closed), "answered once");
    assert_eq!(owner.give_back(number(id.get() + 1), Over::Returned), Err(Violation::UnknownGrant));
    assert_eq!(owner.give_back(id, Over::PassedOn { to: 3 }), Ok(true));
    assert_eq!(owner.give_back(id, Over::Returned), Err(Violation::Replayed));
    assert_eq!((owner.over(id), owner.charged()), (Some(Over::PassedOn { to: 3 }), (80, 1)));
    assert_eq!(owner.end(id), Ended { moved: true, was_asked_for: true });
    assert_eq!(owner.charged(), (0, 0));
    assert_eq!(owner.give_back(id, Over::Returned), Ok(false), "it has crossed the end");
    assert!(owner.lend(None, 1000).unwrap() > id, "unasked, so it does not count");
    assert_eq!(owner.charged(), (0, 0));
}

#[test]
fn a_holder_takes_each_answer_once_and_no_more_than_it_wants() {
    let mut holder = Holder::new(2);
    let nonce = holder.ask(64, 2).unwrap();
    assert_eq!(holder.grant(number(5), Some(number(9)), 64, 2), Err(Violation::UnknownRequest));
    assert_eq!(holder.grant(number(5), Some(nonce), 63, 2), Ok(Reception::TooLittle));
    assert_eq!(holder.grant(number(6), Some(nonce), 64, 2), Err(Violation::UnknownRequest));
    assert_eq!(holder.refused(nonce), Err(Violation::UnknownRequest));
    let nonce = holder.ask(64, 2).unwrap();
    assert_eq!(holder.ask(1, 2), None);
    holder.abandon(nonce);
    assert_eq!(holder.grant(number(5), Some(nonce), 64, 14), Err(Violation::Replayed));
    assert_eq!(holder.grant(number(7), Some(nonce), 64, 14), Ok(Reception::SendBack));
    assert_eq!(holder.grant(number(8), None, 64, 2), Err(Violation::Flood));
    holder.returned(number(5)).unwrap();
    holder.returned(number(7)).unwrap();
    assert_eq!(holder.grant(number(9), None, 1, 2), Ok(Reception::Here));
    assert!(holder.give_back(number(9)));
    assert!(!holder.give_back(number(9)));
    assert_eq!(holder.returned(number(10)), Err(Violation::UnknownGrant));
}

/// Two sides that both keep to the protocol exchange messages at random. Neither meets a violation other than a flood.
#[test]
fn two_honest_sides_agree_on_every_grant() {
    for seed in 0..ROUNDS / 4 + 1 {
        let mut random = Random::new(seed);
        let sides = [0, 1].map(|_| Shared::new(Quota { bytes: 100, grants: 3 }, 4, Duration::ZERO));
        // `lent`, `asks` and `held` have one list for each side. `lent`: the grants that the side gave and has not
        // ended. `asks`: its requests that are not answered. `held`: the grants from the other side that it holds.
        let (mut lent, mut asks, mut held) =
            ([const { Vec::new() }; 2], [const { Vec::new() }; 2], [const { Vec::new() }; 2]);
        for _ in 0..300 {
            let me = random.below(2);
            let core = &sides[me];
            match random.below(8) {
                0 => drop(
                    core.with(|core| core.ask(number(1 + random.below(60) as u64), 2, Duration::MAX))
                        .map(|nonce| asks[me].push(nonce)),
                ),
                1 => core.with(|core| {
                    if let Some(ask) = core.next_asked() {
                        match core.lend(Some(ask.nonce), record(ask.bytes), None) {
                            Ok(id) => lent[me].push(id),
                            Err(_) => core.refuse(ask.nonce),
                        }
                    }
                }),
                2 => core.with(|core| lent[me].extend(core.lend(None, record(8), None))),
                3 if !lent[me].is_empty() => {
                    let id = lent[me].swap_remove(random.below(lent[me].len()));
                    core.with(|core| core.end(id));
                }
                4 if !held[me].is_empty() => {
                    let id = held[me].swap_remove(random.below(held[me].len()));
                    core.with(|core| core.give_back(id, random.one_in(2).then_some(4)));
                }
                5 if !asks[me].is_empty() && random.one_in(3) => {
                    let nonce = asks[me].swap_remove(random.below(asks[me].len()));
                    core.with(|core| core.drop_answer(nonce));
                }
                _ => {
                    let Some(message) = core.with(Core::take_outgoing) else { continue };
                    let bytes = message.to_bytes();
                    // A flood is no fault: a side is allowed to offer more grants than the other side takes.
                    match sides[1 - me].with(|core| core.receive(&bytes)) {
                        Ok(()) | Err(Violation::Flood) => {}
                        Err(violation) => panic!("seed {seed}: {violation:?}"),
                    }
                }
            }
            held[me].extend(core.with(|core| core.next_offer()).map(|grant| grant.id));
            asks[me].retain(|&nonce| match core.with(|core| core.take_answer(nonce)) {
                None => true,
                Some(Answer::Granted(grant)) => {
                    held[me].push(grant.id);
                    false
                }
                Some(_) => false,
            });
            let (bytes, grants) = core.with(|core| core.owner.charged());
            assert!(bytes <= 100 && grants <= 3, "seed {seed}");
        }
    }
}

/// The peer sends arbitrary messages, with repeated and guessed numbers. The program asks, lends and ends at random.
#[test]
fn a_peer_that_lies_about_everything_gets_its_quota_and_no_more() {
    let quota = Quota { bytes: 100, grants: 3 };
    for seed in 0..ROUNDS {
        let mut random = Random::new(seed);
        let shared = Shared::new(quota, 4, Duration::from_millis(1));
        // `registered`: the grants whose memory is not deregistered yet, each with its length in bytes. `unasked`: the
        // registered grants that the peer has not asked for.
        let (mut registered, mut unasked): (BTreeMap<_, u64>, BTreeSet<_>) = Default::default();
        let mut ids = BTreeSet::new();
        let mut answers = Vec::new();
        for _ in 0..300 {
            let before: Vec<_> = registered.keys().map(|&id| (id, shared.with(|core| core.owner.over(id)))).collect();
            match random.below(6) {
                0 => shared.with(|core| {
                    let Some(ask) = core.next_asked() else { return };
                    let len_bytes = ask.bytes + random.below(16) as u64;
                    if let Ok(id) = core.lend(Some(ask.nonce), record(len_bytes), None) {
                        assert!(ids.insert(id), "seed {seed}: an id was used twice");
                        registered.insert(id, len_bytes);
                    } else {
                        core.refuse(ask.nonce);
                    }
                }),
                1 if registered.len() < 6 => shared.with(|core| {
                    let Ok(id) = core.lend(None, record(8), None) else { return };
                    assert!(ids.insert(id), "seed {seed}: an id was used twice");
                    registered.insert(id, 8);
                    unasked.insert(id);
                }),
                2 if !registered.is_empty() && random.one_in(3) => {
                    let id = *registered.keys().nth(random.below(registered.len())).unwrap();
                    registered.remove(&id);
                    unasked.remove(&id);
                    shared.with(|core| core.end(id));
                }
                3 => answers.extend(shared.with(|core| core.ask(number(8), 2, Duration::MAX))),
                _ => {
                    let mut bytes = any_control(&mut random).to_bytes();
                    if random.one_in(4) {
                        bytes[random.below(CONTROL_BYTES)] ^= 1 << random.below(8);
                    }
                    let _ = shared.with(|core| core.receive(&bytes));
                }
            }
            answers.retain(|&nonce| shared.with(|core| core.take_answer(nonce)).is_none());
            shared.with(|core| {
                if random.one_in(3) {
                    core.take_outgoing();
                }
                // Memory that the peer has asked for counts against its quota until the memory is deregistered. The sum
                // of what counts never exceeds the quota.
                let asked_for = registered.iter().filter(|(id, _)| !unasked.contains(id));
                let (bytes, grants) = asked_for.fold((0, 0), |(bytes, grants), (_, len)| (bytes + len, grants + 1));
                let charged = core.owner.charged();
                assert!(bytes <= charged.0 && grants <= charged.1, "seed {seed}: the quota was freed early");
                assert!(charged.0 <= quota.bytes && charged.1 <= quota.grants, "seed {seed}: over the quota");
                assert!(core.holder.len() <= 4, "seed {seed}: more held than wanted");
                for (id, over) in before.into_iter().filter(|(id, _)| registered.contains_key(id)) {
                    assert!(over.is_none() || core.owner.over(id) == over, "seed {seed}: a grant began again");
                }
            });
        }
        let waiting = shared.with(|core| {
            let mut waiting = 0;
            while core.has_outgoing() {
                core.take_outgoing();
                waiting += 1;
            }
            waiting
        });
        assert!(waiting < 64 + 2 * 300, "seed {seed}: {waiting} messages");
    }
}

#[test]
fn a_flood_of_requests_is_answered_only_so_often() {
    let shared = Shared::new(Quota::NOTHING, 0, Duration::ZERO);
    let ask = |nonce| Control::Ask { nonce: number(nonce), bytes: number(1), rights: 2, duration: Duration::ZERO };
    let results: Vec<_> = (1..=1000).map(|nonce| shared.with(|core| core.receive(&ask(nonce).to_bytes()))).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 64);
    assert_eq!(results[999], Err(Violation::Flood));
    assert_eq!(shared.with(|core| core.violations()), 936);
}

/// The peer asks, and returns each grant by a guessed id, again and again, while this side cannot send its messages.
#[test]
fn a_peer_that_asks_and_returns_fills_no_memory() {
    let shared = Shared::new(Quota { bytes: 8, grants: 1 }, 4, Duration::ZERO);
    let mut last = Ok(());
    for nonce in 1..=1000 {
        let ask = Control::Ask { nonce: number(nonce), bytes: number(8), rights: 2, duration: Duration::ZERO };
        last = shared.with(|core| core.receive(&ask.to_bytes()));
        shared.with(|core| {
            let Some(ask) = core.next_asked() else { return };
            let id = core.lend(Some(ask.nonce), record(8), None).unwrap();
            core.receive(&Control::Return { id }.to_bytes()).unwrap();
            core.end(id);
        });
    }
    assert_eq!(last, Err(Violation::Flood));
    let waiting = std::iter::from_fn(|| shared.with(Core::take_outgoing)).count();
    assert_eq!(waiting, 64 + 1);
    // All waiting messages were taken for sending above, so the peer is allowed to ask again.
    let ask = Control::Ask { nonce: number(1001), bytes: number(8), rights: 2, duration: Duration::ZERO };
    assert_eq!(shared.with(|core| core.receive(&ask.to_bytes())), Ok(()));
}

/// The state forgets an offer once the peer has ended it.
#[test]
fn a_peer_that_offers_and_ends_fills_no_memory() {
    let shared = Shared::new(Quota::NOTHING, 2, Duration::ZERO);
    for id in 1..=1000 {
        let offer = Control::Grant { id: number(id), answers: None, duration: Duration::MAX, region: record(8) };
        shared.with(|core| core.receive(&offer.to_bytes())).unwrap();
        shared.with(|core| core.receive(&Control::Returned { id: number(id), moved: false }.to_bytes())).unwrap();
    }
    assert!(shared.with(Core::next_offer).is_none());
}

/// Otherwise the peer would get a grant of memory that is gone.
#[test]
fn a_grant_that_ends_before_it_was_sent_is_not_sent() {
    let shared = Shared::new(Quota { bytes: 8, grants: 1 }, 4, Duration::ZERO);
    let next = || shared.with(Core::take_outgoing).map(|message| Control::parse(&message.to_bytes()).unwrap());
    let id = shared.with(|core| core.lend(None, record(8), None)).unwrap();
    shared.with(|core| core.end(id));
    assert_eq!(next(), None);
    let asks = Control::Ask { nonce: number(3), bytes: number(8), rights: 2, duration: Duration::ZERO };
    shared.with(|core| core.receive(&asks.to_bytes())).unwrap();
    let id = shared.with(|core| core.lend(Some(number(3)), record(8), None)).unwrap();
    shared.with(|core| core.end(id));
    assert_eq!(next(), Some(Control::Refused { nonce: number(3), why: Refusal::Declined }));
    assert_eq!(next(), None);
    // This grant ends only after its message was taken for sending. So the peer gets the grant, and a second message
    // must tell the peer of the end.
    let id = shared.with(|core| core.lend(None, record(8), None)).unwrap();
    assert!(matches!(next(), Some(Control::Grant { .. })));
    shared.with(|core| core.end(id));
    assert_eq!(next(), Some(Control::Returned { id, moved: false }));
}

#[test]
fn after_a_goodbye_nothing_is_taken_and_all_is_over() {
    let shared = Shared::new(Quota { bytes: 8, grants: 1 }, 4, Duration::ZERO);
    let id = shared.with(|core| core.lend(None, record(8), None)).unwrap();
    shared.with(|core| core.receive(&Control::Bye.to_bytes())).unwrap();
    assert_eq!(shared.with(|core| core.owner.over(id)), Some(Over::Closed));
    let late = Control::Return { id }.to_bytes();
    assert_eq!(shared.with(|core| core.receive(&late)), Err(Violation::AfterGoodbye));
    assert_eq!(shared.with(|core| core.lend(None, record(8), None)), Err(NotLent::Closed));
}

/// A waker whose drop panics.
struct Fragile;

impl Wake for Fragile {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Fragile {
    fn drop(&mut self) {
        panic!("the waker's own fault");
    }
}

/// A wait drops its old waker before it takes the answer. So the answer is still there after the panic.
#[test]
fn a_waker_whose_drop_panics_costs_no_answer() {
    let shared = Shared::new(Quota::NOTHING, 1, Duration::ZERO);
    let answer = Cell::new(None);
    {
        let mut wait = pin!(shared.wait(|_| answer.take()));
        let fragile = Waker::from(Arc::new(Fragile));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&fragile)).is_pending());
        drop(fragile);
        answer.set(Some(7));
        let poll = || wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
    }
    assert_eq!(answer.take(), Some(7));
}
