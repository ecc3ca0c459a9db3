//! Rule Q8: the device writes only to memory that one handle owns.

use interlock::{Brand, Buffer, QueuePair};

fn receive<B: Brand>(pair: &mut QueuePair<B>, memory: Buffer<B>) {
    let _ = pair.post_receive(memory);
}

fn main() {}
