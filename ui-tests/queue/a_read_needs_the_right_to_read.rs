//! Rule Q9: an operation needs the right that the peer granted.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, RemoteRegion, RemoteWrite};

fn read<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, source: &RemoteRegion<RemoteWrite>) {
    let _ = pair.post_read(buffer, source);
}

fn main() {}
