//! Rule Q3: a send work request is posted in Ready To Send only.
//! Error: E0599

use interlock::{AnyQueuePair, Brand, Buffer};

fn send<B: Brand>(pair: &mut AnyQueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
