//! Rule Q7: memory in flight is gone until its completion.
//! Error: E0505

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) -> usize {
    let bytes = &buffer[..];
    let _ = pair.post_receive(buffer);
    bytes.len()
}

fn main() {}
