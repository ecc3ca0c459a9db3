//! Rule Q6: a transition takes the pair; only its result goes on.

use interlock::{Brand, Buffer, QueuePair};

fn stale<B: Brand>(pair: QueuePair<B>, buffer: Buffer<B>) {
    let (mut send, _receive) = pair.split();
    let _ = send.post_send(buffer);
}

fn main() {}
