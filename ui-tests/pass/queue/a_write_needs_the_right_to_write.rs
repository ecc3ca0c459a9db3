//! Rule Q9: an operation needs the right that the peer granted.

use interlock::{Brand, Buffer, QueuePair, RemoteReadWrite, RemoteRegion};

fn write<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, target: &RemoteRegion<RemoteReadWrite>) {
    let _ = pair.post_write(buffer, target);
}

fn main() {}
