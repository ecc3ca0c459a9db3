//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::{Brand, Buffer, QueuePair, RemoteRegion, RemoteWrite};

fn write<B: Brand>(pair: &mut QueuePair<B>, memory: Buffer<B>, target: &RemoteRegion<RemoteWrite>) {
    let _ = pair.post_write(memory, target);
}

fn main() {}
