//! Rule Q3: a send work request is posted in Ready To Send only.

use interlock::state::PostSend;
use interlock::{Brand, Buffer, QueuePair};

fn send<B: Brand, S: PostSend>(pair: &mut QueuePair<B, S>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
