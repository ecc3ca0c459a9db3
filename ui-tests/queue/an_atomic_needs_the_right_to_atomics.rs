//! Rule Q9: an operation needs the right that the peer granted.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, RemoteReadWrite, RemoteRegion};

fn swap<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, target: &RemoteRegion<RemoteReadWrite>) {
    let _ = pair.post_compare_and_swap(buffer, target, 0, 1);
}

fn main() {}
