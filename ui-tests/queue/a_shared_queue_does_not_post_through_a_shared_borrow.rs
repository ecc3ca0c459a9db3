//! Rule H3: one thread posts to a shared receive queue at a time.
//! Error: E0596

use interlock::{Brand, Buffer};
use interlock::shared::SharedReceiveQueue;

fn post<B: Brand>(shared: &SharedReceiveQueue<B>, buffer: Buffer<B>) {
    let _ = shared.post_receive(buffer);
}

fn main() {}
