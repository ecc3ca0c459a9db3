//! Rule Q9: an operation needs the right that the peer granted.
//! Error: E0277

use interlock::{Brand, QueuePair, RemoteRead, RemoteRegion};

fn write<B: Brand>(pair: &mut QueuePair<B>, target: &RemoteRegion<RemoteRead>) {
    let _ = pair.post_atomic_write(target, 1);
}

fn main() {}
