//! Rule Q7: memory in flight is gone until its completion.
//! Error: E0382

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(one: &mut QueuePair<B>, two: &mut QueuePair<B>, buffer: Buffer<B>, other: Buffer<B>) {
    let _ = one.post_receive(buffer);
    let _ = two.post_receive(buffer);
    let _ = two.post_receive(other);
}

fn main() {}
