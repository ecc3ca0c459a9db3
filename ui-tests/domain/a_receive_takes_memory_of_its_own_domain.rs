//! Rule D1: memory is posted to queue pairs of its own protection domain only.
//! Error: E0277

use interlock::{Buffer, QueuePair};

interlock::domain! { struct Storage; struct Scratch; }

fn receive(pair: &mut QueuePair<Storage>, buffer: Buffer<Scratch>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
