//! Rule Q9: an operation needs the right that the peer granted.

use interlock::{Brand, QueuePair, RemoteRegion, RemoteWrite};

fn write<B: Brand>(pair: &mut QueuePair<B>, target: &RemoteRegion<RemoteWrite>) {
    let _ = pair.post_atomic_write(target, 1);
}

fn main() {}
