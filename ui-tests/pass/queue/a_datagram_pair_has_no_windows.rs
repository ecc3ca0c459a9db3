//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::{Brand, QueuePair, ReadyToSend, ReliableConnection};

fn make<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, ReliableConnection>) {
    drop(pair.window());
}

fn main() {}
