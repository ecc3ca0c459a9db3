//! Rule Q11: one thread posts to a work queue at a time.

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
