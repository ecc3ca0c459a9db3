//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, UnreliableConnection};

fn send<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>, memory: Buffer<B>) {
    let _ = pair.post_send(memory);
}

fn main() {}
