//! Rule H1: a pair on a shared receive queue has no receives of its own.
//! Error: E0277

use interlock::{Brand, QueuePair, ReadyToSend, ReliableConnection};
use interlock::transport::OnShared;

fn split<B: Brand>(pair: QueuePair<B, ReadyToSend, OnShared<ReliableConnection>>) {
    let _ = pair.split();
}

fn main() {}
