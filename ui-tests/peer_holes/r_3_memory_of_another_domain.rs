//! Hole R-3: memory of one protection domain on a queue pair of another.
//! Error: E0277

use interlock::{Buffer, QueuePair, RemoteRegion, RemoteWrite};

interlock::domain! { struct Storage; struct Scratch; }

fn cross(pair: &mut QueuePair<Storage>, buffer: Buffer<Scratch>, target: &RemoteRegion<RemoteWrite>) {
    let _ = pair.post_write(buffer, target);
}

fn main() {}
