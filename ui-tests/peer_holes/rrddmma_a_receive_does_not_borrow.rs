//! Hole of rrddmma: a receive into a borrow that ends when the call returns.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair};

fn receive<B: Brand>(pair: &mut QueuePair<B>, mut memory: Buffer<B>) {
    let _ = pair.post_receive(&memory);
    memory.fill(0);
}

fn main() {}
