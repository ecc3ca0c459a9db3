//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::{Brand, Buffer, QueuePair};

fn send<B: Brand>(pair: &mut QueuePair<B>, memory: Buffer<B>) {
    let _ = pair.post_send(memory);
}

fn main() {}
