//! Rule Q3: a send work request is posted in Ready To Send only.

use interlock::{AnyQueuePair, Brand, Buffer};

fn send<B: Brand>(pair: &mut AnyQueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.ready().map(|pair| pair.post_send(buffer));
}

fn main() {}
