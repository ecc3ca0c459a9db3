//! Hole R-4: one buffer posted for two receives.

use interlock::{Brand, Buffer, QueuePair};

fn receive<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, other: Buffer<B>) {
    let _ = pair.post_receive(buffer);
    let _ = pair.post_receive(other);
}

fn main() {}
