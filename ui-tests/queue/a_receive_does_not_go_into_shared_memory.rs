//! Rule Q8: the device writes only to memory that one handle owns.
//! Error: E0277

use interlock::{Brand, QueuePair, SharedBuffer};

fn receive<B: Brand>(pair: &mut QueuePair<B>, memory: SharedBuffer<B>) {
    let _ = pair.post_receive(memory);
}

fn main() {}
