//! Rule Q11: one thread posts to a work queue at a time.
//! Error: E0599

use interlock::Brand;
use interlock::queue::{ReceiveHalf, SendHalf};

fn twice<B: Brand>(send: SendHalf<B>, receive: ReceiveHalf<B>) {
    let _ = (send.clone(), receive.clone());
    let _ = (send, receive);
}

fn main() {}
