//! Hole of rrddmma: a receive into a borrow that ends when the call returns.

use interlock::{Brand, Buffer, QueuePair};

fn receive<B: Brand>(pair: &mut QueuePair<B>, mut memory: Buffer<B>) {
    memory.fill(0);
    let _ = pair.post_receive(memory);
}

fn main() {}
