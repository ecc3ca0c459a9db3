//! Rule H1: a pair on a shared receive queue has no receives of its own.

use interlock::{Brand, QueuePair, ReadyToSend, ReliableConnection};

fn split<B: Brand>(pair: QueuePair<B, ReadyToSend, ReliableConnection>) {
    let _ = pair.split();
}

fn main() {}
