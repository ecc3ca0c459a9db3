//! Rule Q8: the device writes only to memory that one handle owns.
//! Error: E0308

use interlock::{Brand, QueuePair, RemoteAtomic, RemoteRegion, SharedBuffer};

fn add<B: Brand>(pair: &mut QueuePair<B>, memory: SharedBuffer<B>, target: &RemoteRegion<RemoteAtomic>) {
    let _ = pair.post_fetch_and_add(memory, target, 1);
}

fn main() {}
