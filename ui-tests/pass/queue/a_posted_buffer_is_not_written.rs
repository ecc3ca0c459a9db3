//! Rule Q7: memory in flight is gone until its completion.

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, mut buffer: Buffer<B>) {
    buffer.fill(7);
    let _ = pair.post_send(buffer);
}

fn main() {}
