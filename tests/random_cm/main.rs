//! Random histories of identifiers of rdma_cm, each checked against a small model of the possible outcomes; and random
//! private data.
//!
//! A history has listeners and many clients on one device. At any step a value may be used, dropped or forgotten. The
//! test moves the clock and the messages of the soft device step by step, and injects faults. So a seed gives the same
//! history with the same outcome each time. Other devices get no faults. `INTERLOCK_SEED=<number>` repeats one history.
//! A history that fails is reduced, and printed with its seed.
#![cfg(feature = "cm")]

mod data;
mod model;
mod stock;
mod world;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;
use support::steps::{self, programs};
use world::{CALLS, World};

/// The time limit of the search for a small history that fails.
const SEARCH: Duration = Duration::from_secs(60);
/// The place of a step says in which lane it happens, and which of the values in that lane it takes.
const PLACES: usize = 4 * world::LANES;

/// The outcomes that the histories on the soft device must reach, all together. Without this check, histories that test
/// nothing would pass.
const OUTCOMES: [&str; 22] = [
    "accept: a call failed",
    "accept: the peer has gone",
    "client: a call failed",
    "client: connected",
    "client: nobody listens",
    "client: rejected",
    "client: removed",
    "client: timed out",
    "client: unreachable",
    "connection: a free number",
    "connection: a message",
    "connection: disconnected",
    "connection: removed",
    "listener: a request",
    "reject: done",
    "reject: failed",
    "resolving: no such address",
    "server: a call failed",
    "server: connected",
    "server: rejected",
    "server: removed",
    "server: unreachable",
];

#[test]
fn every_history_is_one_that_the_model_allows() {
    let is_slow = support::on_hardware();
    let (count, most) = if cfg!(miri) {
        (2, 30)
    } else if is_slow {
        (12, 60)
    } else {
        (1500, 240)
    };
    let seeds = match std::env::var("INTERLOCK_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).expect("a number"),
        Err(_) => 0..count,
    };
    let strategy = programs(&CALLS, PLACES, most);
    // On a device that is not stepped, messages arrive at any time. A reduced history can then fail for another reason
    // than the whole one, so the test does not search for a reduced history there.
    let search = if is_slow || cfg!(miri) { Duration::ZERO } else { SEARCH };
    let seen = RefCell::new(BTreeSet::new());
    for seed in seeds {
        steps::check(&format!("history: INTERLOCK_SEED={seed}"), seed, &strategy, search, |program| {
            let mut world = World::open();
            for step in program.steps() {
                world.take(step);
            }
            seen.borrow_mut().extend(world.end(&mut program.random_after()));
        });
    }
    let seen = seen.into_inner();
    if !is_slow && !cfg!(miri) && std::env::var_os("INTERLOCK_SEED").is_none() {
        let unseen: Vec<_> = OUTCOMES.iter().filter(|outcome| !seen.contains(**outcome)).collect();
        assert!(unseen.is_empty(), "no history came to {unseen:?}, but to {seen:?}");
    }
}
