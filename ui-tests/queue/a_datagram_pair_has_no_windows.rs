//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, QueuePair, ReadyToSend, UnreliableDatagram};

fn make<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableDatagram>) {
    drop(pair.window());
}

fn main() {}
