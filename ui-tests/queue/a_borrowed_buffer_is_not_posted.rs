//! Rule Q7: memory in flight is gone until its completion.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, mut buffer: Buffer<B>) {
    let _ = pair.post_receive(&mut buffer);
}

fn main() {}
