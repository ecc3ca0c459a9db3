//! Rule Q3: a send work request is posted in Ready To Send only.

use interlock::state::SendQueueError;
use interlock::{Brand, Buffer, QueuePair, UnreliableConnection};

fn post<B: Brand>(pair: &mut QueuePair<B, SendQueueError, UnreliableConnection>, buffer: Buffer<B>) {
    let _ = pair.post_receive(buffer);
}

fn main() {}
