//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, RemoteRegion, RemoteWrite};
use interlock::datagram::Addressed;

fn write<B: Brand>(pair: &mut QueuePair<B>, memory: Addressed<B, Buffer<B>>, target: &RemoteRegion<RemoteWrite>) {
    let _ = pair.post_write(memory, target);
}

fn main() {}
