//! Rule Q6: a transition takes the pair; only its result goes on.
//! Error: E0382

use interlock::{Brand, Buffer, QueuePair};

fn stale<B: Brand>(mut pair: QueuePair<B>, buffer: Buffer<B>) {
    let _halves = pair.split();
    let _ = pair.post_send(buffer);
}

fn main() {}
