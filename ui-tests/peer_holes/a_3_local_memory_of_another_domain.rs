//! Hole A-3: local memory of another device or domain is accepted.
//! Error: E0308

use interlock::{Buffer, QueuePair, RemoteRead, RemoteRegion};

interlock::domain! { struct Storage; struct Scratch; }

fn read(pair: &mut QueuePair<Storage>, buffer: Buffer<Scratch>, source: &RemoteRegion<RemoteRead>) {
    let _ = pair.post_read(buffer, source);
}

fn main() {}
