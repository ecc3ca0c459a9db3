//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, QueuePair, ReadyToSend, RemoteRegion, RemoteWrite, UnreliableConnection};

fn write<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>, target: &RemoteRegion<RemoteWrite>) {
    let _ = pair.post_atomic_write(target, 1);
}

fn main() {}
