//! Rule Q4: a receive is not posted in Reset or Error.
//! Error: E0277

use interlock::{Brand, Buffer, Errored, QueuePair};

fn receive<B: Brand>(pair: &mut QueuePair<B, Errored>, buffer: Buffer<B>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
