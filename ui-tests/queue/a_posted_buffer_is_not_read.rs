//! Rule Q7: memory in flight is gone until its completion.
//! Error: E0382

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) -> u8 {
    let _ = pair.post_send(buffer);
    buffer[0]
}

fn main() {}
