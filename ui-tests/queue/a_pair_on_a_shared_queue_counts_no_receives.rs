//! Rule H1: a pair on a shared receive queue has no receives of its own.
//! Error: E0277

use interlock::{Brand, Init, QueuePair, ReliableConnection};
use interlock::shared::SharedReceiveQueue;
use interlock::transport::OnShared;

fn count<B: Brand>(shared: &SharedReceiveQueue<B>, pair: &QueuePair<B, Init, OnShared<ReliableConnection>>) -> u32 {
    let _ = shared;
    pair.receives_in_flight()
}

fn main() {}
