//! Rule Q3: a send work request is posted in Ready To Send only.

use interlock::{Brand, Buffer, QueuePair, ReadyToSend};

fn send<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
