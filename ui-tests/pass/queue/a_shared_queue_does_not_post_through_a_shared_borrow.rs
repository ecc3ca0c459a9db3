//! Rule H3: one thread posts to a shared receive queue at a time.

use interlock::shared::SharedReceiveQueue;
use interlock::{Brand, Buffer};

fn post<B: Brand>(shared: &mut SharedReceiveQueue<B>, buffer: Buffer<B>) {
    let _ = shared.post_receive(buffer);
}

fn main() {}
