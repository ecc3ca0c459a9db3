//! Rule Q4: a receive is not posted in Reset or Error.

use interlock::{Brand, Buffer, Init, QueuePair};

fn receive<B: Brand>(pair: &mut QueuePair<B, Init>, buffer: Buffer<B>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
