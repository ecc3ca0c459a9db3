//! Rule Q7: memory in flight is gone until its completion.

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
