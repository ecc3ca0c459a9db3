//! Rule Q9: an operation needs the right that the peer granted.

use interlock::{Brand, Buffer, QueuePair, RemoteAtomic, RemoteRegion};

fn swap<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, target: &RemoteRegion<RemoteAtomic>) {
    let _ = pair.post_compare_and_swap(buffer, target, 0, 1);
}

fn main() {}
