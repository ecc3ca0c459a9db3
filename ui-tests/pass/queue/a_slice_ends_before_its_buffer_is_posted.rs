//! Rule Q7: memory in flight is gone until its completion.

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) -> usize {
    let bytes = &buffer[..];
    let length = bytes.len();
    let _ = pair.post_receive(buffer);
    length
}

fn main() {}
