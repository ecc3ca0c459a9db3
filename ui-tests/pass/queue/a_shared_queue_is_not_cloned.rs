//! Rule H3: one thread posts to a shared receive queue at a time.

use interlock::Brand;
use interlock::shared::SharedReceiveQueue;

fn twice<B: Brand>(shared: SharedReceiveQueue<B>) {
    let _ = shared;
}

fn main() {}
