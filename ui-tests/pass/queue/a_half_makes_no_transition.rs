//! Rule Q6: a transition takes the pair; only its result goes on.

use interlock::Brand;
use interlock::queue::{ReceiveHalf, SendHalf};

fn stop<B: Brand>(send: SendHalf<B>, receive: ReceiveHalf<B>) {
    let _ = send.join(receive).map(|pair| pair.into_error());
}

fn main() {}
