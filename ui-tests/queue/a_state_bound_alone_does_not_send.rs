//! Rule Q3: a send work request is posted in Ready To Send only.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair};
use interlock::state::State;

fn send<B: Brand, S: State>(pair: &mut QueuePair<B, S>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
