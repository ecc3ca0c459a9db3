//! Rule H1: a pair on a shared receive queue has no receives of its own.

use interlock::{Buffer, QueuePair, ReadyToSend, UnreliableDatagram};

interlock::domain! { struct Storage; }

fn receive(pair: &mut QueuePair<Storage, ReadyToSend, UnreliableDatagram>, buffer: Buffer<Storage>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
