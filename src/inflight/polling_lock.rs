//! A lock that keeps polls and resets apart.
//!
//! Some providers change a queue pair while they poll its completion queue, and their reset of the pair does not take
//! the lock of that poll (`Teardown::Polled` in `provider/reviewed.rs`). With such a provider, each poll and each reset
//! takes this lock. Polls of other providers take no lock.

use crate::sync::lock;
use crate::sys::ibv_cq;
use std::sync::{Mutex, MutexGuard};

/// More locks than polling threads on most machines. Two completion queues may share a lock, which costs only time.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// Keeps other threads from polling a completion queue, and from resetting its pairs, until the guard is dropped.
pub(crate) fn polling_lock(cq: *const ibv_cq) -> MutexGuard<'static, ()> {
    let [first, ..] = &LOCKS;
    // An `ibv_cq` is larger than 64 bytes, so adjacent queues mostly get different locks.
    lock(LOCKS.get(cq.addr() / 64 % LOCKS.len()).unwrap_or(first))
}
