//! Rule Q3: a send work request is posted in Ready To Send only.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair};
use interlock::state::SendQueueDrain;

fn send<B: Brand>(pair: &mut QueuePair<B, SendQueueDrain>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
