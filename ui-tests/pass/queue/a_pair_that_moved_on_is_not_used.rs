//! Rule Q6: a transition takes the pair; only its result goes on.

use interlock::{Brand, Buffer, QueuePair};

fn stale<B: Brand>(mut pair: QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
    let _ = pair.into_error();
}

fn main() {}
