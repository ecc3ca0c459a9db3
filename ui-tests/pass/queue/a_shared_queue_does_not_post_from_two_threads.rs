//! Rule H3: one thread posts to a shared receive queue at a time.

use interlock::shared::SharedReceiveQueue;
use interlock::{Brand, Buffer};

fn post<B: Brand>(shared: &mut SharedReceiveQueue<B>, other: &mut SharedReceiveQueue<B>, buffers: [Buffer<B>; 2]) {
    let [one, two] = buffers;
    std::thread::scope(|scope| {
        scope.spawn(|| shared.post_receive(one).is_ok());
        scope.spawn(|| other.post_receive(two).is_ok());
    });
}

fn main() {}
