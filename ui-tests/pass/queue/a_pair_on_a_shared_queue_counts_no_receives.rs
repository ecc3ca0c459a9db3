//! Rule H1: a pair on a shared receive queue has no receives of its own.

use interlock::{Brand, Init, OnShared, QueuePair, ReliableConnection, SharedReceiveQueue};

fn count<B: Brand>(shared: &SharedReceiveQueue<B>, pair: &QueuePair<B, Init, OnShared<ReliableConnection>>) -> u32 {
    let _ = pair;
    shared.in_flight()
}

fn main() {}
