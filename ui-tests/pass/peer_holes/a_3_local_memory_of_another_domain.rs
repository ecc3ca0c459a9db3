//! Hole A-3: local memory of another device or domain is accepted.

use interlock::{Buffer, QueuePair, RemoteRead, RemoteRegion};

interlock::domain! { struct Storage; struct Scratch; }

fn read(pair: &mut QueuePair<Storage>, buffer: Buffer<Storage>, source: &RemoteRegion<RemoteRead>) {
    let _ = pair.post_read(buffer, source);
}

fn main() {}
