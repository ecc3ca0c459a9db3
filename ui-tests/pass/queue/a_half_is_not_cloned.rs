//! Rule Q11: one thread posts to a work queue at a time.

use interlock::Brand;
use interlock::queue::{ReceiveHalf, SendHalf};

fn twice<B: Brand>(send: SendHalf<B>, receive: ReceiveHalf<B>) {
    let _ = (send, receive);
}

fn main() {}
