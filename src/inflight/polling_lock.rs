//! A lock that keeps polls apart from destroys and resets on other threads.
//!
//! Some providers change a queue pair while they poll its completion queue, and the destroy or the reset of the pair
//! does not take the lock of that poll (`Teardown::Polled` in `provider/reviewed.rs`). With such a provider, each poll
//! takes this lock, and so does whoever destroys a pair outside of the poller (`queue/create.rs`) or resets one. Polls
//! of other providers take no lock.

use crate::sync::lock;
use crate::sys::ibv_cq;
use std::sync::{Mutex, MutexGuard};

/// More locks than polling threads on most machines. Two completion queues may share a lock, which costs only time.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// Keeps other threads from polling a completion queue, and from ending its pairs, until the guard is dropped.
pub(crate) fn polling_lock(cq: *const ibv_cq) -> MutexGuard<'static, ()> {
    let [first, ..] = &LOCKS;
    // An `ibv_cq` is larger than 64 bytes, so adjacent queues mostly get different locks.
    lock(LOCKS.get(cq.addr() / 64 % LOCKS.len()).unwrap_or(first))
}
