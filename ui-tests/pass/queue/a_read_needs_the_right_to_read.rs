//! Rule Q9: an operation needs the right that the peer granted.

use interlock::{Brand, Buffer, QueuePair, RemoteReadWrite, RemoteRegion};

fn read<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, source: &RemoteRegion<RemoteReadWrite>) {
    let _ = pair.post_read(buffer, source);
}

fn main() {}
