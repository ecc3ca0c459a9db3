//! Rule D6: a brand cannot be made up.

use interlock::{Buffer, QueuePair};

fn send<B: interlock::Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
