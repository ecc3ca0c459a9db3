//! Rule H2: a shared receive queue, its memory, its pairs and their completion queues are of one domain.
//! Error: E0308

use interlock::Buffer;
use interlock::shared::SharedReceiveQueue;

interlock::domain! { struct Storage; struct Scratch; }

fn receive(shared: &mut SharedReceiveQueue<Storage>, buffer: Buffer<Scratch>) {
    let _ = shared.post_receive(buffer);
}

fn main() {}
