//! Rule Q11: one thread posts to a work queue at a time.
//! Error: E0499

use interlock::{Brand, Buffer};
use interlock::queue::{ReceiveHalf, SendHalf};

fn post<B: Brand>(send: &mut SendHalf<B>, receive: &mut ReceiveHalf<B>, one: Buffer<B>, two: Buffer<B>) {
    std::thread::scope(|scope| {
        scope.spawn(|| send.post_send(one).is_ok());
        scope.spawn(|| send.post_send(two).is_ok());
        let _ = receive;
    });
}

fn main() {}
