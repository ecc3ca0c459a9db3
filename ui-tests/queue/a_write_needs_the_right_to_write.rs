//! Rule Q9: an operation needs the right that the peer granted.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, RemoteRead, RemoteRegion};

fn write<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, target: &RemoteRegion<RemoteRead>) {
    let _ = pair.post_write(buffer, target);
}

fn main() {}
