//! Rule D1: memory is posted to queue pairs of its own protection domain only.

use interlock::{Buffer, QueuePair};

interlock::domain! { struct Storage; struct Scratch; }

fn receive(pair: &mut QueuePair<Storage>, buffer: Buffer<Storage>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
