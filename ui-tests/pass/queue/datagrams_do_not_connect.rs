//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::transport::Connected;
use interlock::{Brand, Endpoint, Init, QueuePair};

fn connect<B: Brand, T: Connected>(pair: QueuePair<B, Init, T>, peer: &Endpoint) {
    let _ = pair.connect(peer);
}

fn main() {}
