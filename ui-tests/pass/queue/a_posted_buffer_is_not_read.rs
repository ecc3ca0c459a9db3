//! Rule Q7: memory in flight is gone until its completion.

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) -> u8 {
    let first = buffer[0];
    let _ = pair.post_send(buffer);
    first
}

fn main() {}
