//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Endpoint, Init, QueuePair, UnreliableDatagram};

fn connect<B: Brand>(pair: QueuePair<B, Init, UnreliableDatagram>, peer: &Endpoint) {
    let _ = pair.connect(peer);
}

fn main() {}
