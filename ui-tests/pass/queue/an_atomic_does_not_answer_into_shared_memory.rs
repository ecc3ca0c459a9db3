//! Rule Q8: the device writes only to memory that one handle owns.

use interlock::{Brand, Buffer, QueuePair, RemoteAtomic, RemoteRegion};

fn add<B: Brand>(pair: &mut QueuePair<B>, memory: Buffer<B>, target: &RemoteRegion<RemoteAtomic>) {
    let _ = pair.post_fetch_and_add(memory, target, 1);
}

fn main() {}
