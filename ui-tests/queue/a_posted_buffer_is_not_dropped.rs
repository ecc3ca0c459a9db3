//! Rule Q7: memory in flight is gone until its completion.
//! Error: E0382

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.post_receive(buffer);
    drop(buffer);
}

fn main() {}
