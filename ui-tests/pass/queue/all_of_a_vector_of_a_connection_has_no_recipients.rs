//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::{Brand, Buffer, QueuePair, WorkRequest};

fn send<B: Brand>(pair: &mut QueuePair<B>, mut memory: Vec<Buffer<B>>) {
    let _ = pair.post_all(&mut memory, WorkRequest::send);
}

fn main() {}
