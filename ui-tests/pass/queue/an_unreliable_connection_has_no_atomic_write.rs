//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::{Brand, QueuePair, ReadyToSend, ReliableConnection, RemoteRegion, RemoteWrite};

fn write<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, ReliableConnection>, target: &RemoteRegion<RemoteWrite>) {
    let _ = pair.post_atomic_write(target, 1);
}

fn main() {}
