//! Rule H1: a pair on a shared receive queue has no receives of its own.
//! Error: E0277

use interlock::{Brand, OnShared, QueuePair, ReadyToSend, ReliableConnection};

fn split<B: Brand>(pair: QueuePair<B, ReadyToSend, OnShared<ReliableConnection>>) {
    let _ = pair.split();
}

fn main() {}
