//! Polls and resets that take turns.
//!
//! Some providers change a queue pair in a poll of its completion queue, without a lock that a reset of the pair takes too
//! (`Teardown::Polled` of `provider/reviewed.rs`). There the two take turns. Elsewhere no lock is taken.

use crate::sys::ibv_cq;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// More than threads that poll, on most machines. Two queues may share one, which costs time only.
static TURNS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// The turn of a completion queue; for others it is theirs once this is dropped.
pub(crate) fn turn(cq: *const ibv_cq) -> MutexGuard<'static, ()> {
    // Handles are some cache lines long.
    let [first, ..] = &TURNS;
    TURNS.get(cq.addr() / 64 % TURNS.len()).unwrap_or(first).lock().unwrap_or_else(PoisonError::into_inner)
}
