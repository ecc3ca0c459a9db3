//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::attributes::ConnectAttributes;
use interlock::{Brand, Endpoint, Init, QueuePair, ReliableConnection};

fn up<B: Brand>(pair: QueuePair<B, Init, ReliableConnection>, peer: &Endpoint, attr: &ConnectAttributes) {
    let _ = pair.connect_with(peer, attr);
}

fn main() {}
