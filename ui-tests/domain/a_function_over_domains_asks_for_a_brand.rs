//! Rule D6: a brand cannot be made up.
//! Error: E0599

use interlock::{Buffer, QueuePair};

fn send<B>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
