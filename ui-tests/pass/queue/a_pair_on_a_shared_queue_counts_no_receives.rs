//! Rule H1: a pair on a shared receive queue has no receives of its own.

use interlock::shared::SharedReceiveQueue;
use interlock::transport::OnShared;
use interlock::{Brand, Init, QueuePair, ReliableConnection};

fn count<B: Brand>(shared: &SharedReceiveQueue<B>, pair: &QueuePair<B, Init, OnShared<ReliableConnection>>) -> u32 {
    let _ = pair;
    shared.in_flight()
}

fn main() {}
