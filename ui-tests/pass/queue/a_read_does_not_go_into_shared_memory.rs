//! Rule Q8: the device writes only to memory that one handle owns.

use interlock::{Brand, Buffer, QueuePair, RemoteRead, RemoteRegion};

fn read<B: Brand>(pair: &mut QueuePair<B>, memory: Buffer<B>, source: &RemoteRegion<RemoteRead>) {
    let _ = pair.post_read(memory, source);
}

fn main() {}
