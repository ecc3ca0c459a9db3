//! Rule Q5: states and their capabilities are sealed.

use interlock::state::PostSend;
use interlock::{Brand, Buffer, QueuePair, ReadyToSend};

fn send<B: Brand, S: PostSend>(pair: &mut QueuePair<B, S>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn early<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, buffer: Buffer<B>) {
    send(pair, buffer);
}

fn main() {}
