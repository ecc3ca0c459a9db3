//! Rule H1: a pair on a shared receive queue has no receives of its own.
//! Error: E0277

use interlock::{Buffer, QueuePair, ReadyToSend, UnreliableDatagram};
use interlock::transport::OnShared;

interlock::domain! { struct Storage; }

fn receive(pair: &mut QueuePair<Storage, ReadyToSend, OnShared<UnreliableDatagram>>, buffer: Buffer<Storage>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
