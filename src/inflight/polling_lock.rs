//! A lock that keeps polls and resets apart.
//!
//! Some providers change a queue pair while they poll its completion queue, and a reset of the pair does not take the
//! lock of that poll (`Teardown::Polled` of the reviewed providers). For them each poll and each reset takes this lock.
//! Polls of other providers take no lock.

use crate::sync::lock;
use crate::sys::ibv_cq;
use std::sync::{Mutex, MutexGuard};

/// More locks than threads that poll, on most machines. Two completion queues may share one, which only costs time.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// Locks a completion queue against polls or resets elsewhere, until the guard is dropped.
pub(crate) fn polling_lock(cq: *const ibv_cq) -> MutexGuard<'static, ()> {
    let [first, ..] = &LOCKS;
    // An `ibv_cq` is larger than 64 bytes, so neighbours mostly get locks of their own.
    lock(LOCKS.get(cq.addr() / 64 % LOCKS.len()).unwrap_or(first))
}
