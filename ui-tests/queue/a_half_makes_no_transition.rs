//! Rule Q6: a transition takes the pair; only its result goes on.
//! Error: E0599

use interlock::Brand;
use interlock::queue::{ReceiveHalf, SendHalf};

fn stop<B: Brand>(send: SendHalf<B>, receive: ReceiveHalf<B>) {
    let _ = (send.into_error(), receive);
}

fn main() {}
