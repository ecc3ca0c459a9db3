//! Rule H1: a pair on a shared receive queue has no receives of its own.

use interlock::{Buffer, QueuePair, ReadyToSend, UnreliableConnection};

interlock::domain! { struct Storage; }

fn receive(pair: &mut QueuePair<Storage, ReadyToSend, UnreliableConnection>, buffer: Buffer<Storage>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
