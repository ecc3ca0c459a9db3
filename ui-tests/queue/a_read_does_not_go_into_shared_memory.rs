//! Rule Q8: the device writes only to memory that one handle owns.
//! Error: E0308

use interlock::{Brand, QueuePair, RemoteRead, RemoteRegion, SharedBuffer};

fn read<B: Brand>(pair: &mut QueuePair<B>, memory: SharedBuffer<B>, source: &RemoteRegion<RemoteRead>) {
    let _ = pair.post_read(memory, source);
}

fn main() {}
