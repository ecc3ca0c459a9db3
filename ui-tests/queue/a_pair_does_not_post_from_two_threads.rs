//! Rule Q11: one thread posts to a work queue at a time.
//! Error: E0499

use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand + Send>(pair: &mut QueuePair<B>, one: Buffer<B>, two: Buffer<B>) {
    std::thread::scope(|scope| {
        scope.spawn(|| pair.post_send(one).is_ok());
        scope.spawn(|| pair.post_send(two).is_ok());
    });
}

fn main() {}
