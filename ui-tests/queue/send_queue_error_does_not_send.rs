//! Rule Q3: a send work request is posted in Ready To Send only.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, UnreliableConnection};
use interlock::state::SendQueueError;

fn post<B: Brand>(pair: &mut QueuePair<B, SendQueueError, UnreliableConnection>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
