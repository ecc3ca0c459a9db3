//! Rule Q5: states and their capabilities are sealed.

use interlock::{Brand, Buffer, QueuePair};

use interlock::ReadyToSend as Mine;
fn send<B: Brand>(pair: &mut QueuePair<B, Mine>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
