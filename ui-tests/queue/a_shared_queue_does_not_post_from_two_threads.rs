//! Rule H3: one thread posts to a shared receive queue at a time.
//! Error: E0499

use interlock::{Brand, Buffer};
use interlock::shared::SharedReceiveQueue;

fn post<B: Brand>(shared: &mut SharedReceiveQueue<B>, other: &mut SharedReceiveQueue<B>, buffers: [Buffer<B>; 2]) {
    let [one, two] = buffers;
    std::thread::scope(|scope| {
        scope.spawn(|| shared.post_receive(one).is_ok());
        scope.spawn(|| shared.post_receive(two).is_ok());
        let _ = other;
    });
}

fn main() {}
