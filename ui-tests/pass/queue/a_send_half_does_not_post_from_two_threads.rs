//! Rule Q11: one thread posts to a work queue at a time.

use interlock::queue::{ReceiveHalf, SendHalf};
use interlock::{Brand, Buffer};

fn post<B: Brand>(send: &mut SendHalf<B>, receive: &mut ReceiveHalf<B>, one: Buffer<B>, two: Buffer<B>) {
    std::thread::scope(|scope| {
        scope.spawn(|| send.post_send(one).is_ok());
        scope.spawn(|| receive.post_receive(two).is_ok());
    });
}

fn main() {}
