//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Endpoint, Init, QueuePair, UnreliableDatagram};
use interlock::attributes::ConnectAttributes;

fn up<B: Brand>(pair: QueuePair<B, Init, UnreliableDatagram>, peer: &Endpoint, attr: &ConnectAttributes) {
    let _ = pair.connect_with(peer, attr);
}

fn main() {}
