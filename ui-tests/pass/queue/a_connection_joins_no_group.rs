//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::{Brand, Gid, QueuePair, ReadyToSend, UnreliableDatagram};

fn join<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableDatagram>, group: Gid) {
    let _ = pair.join_group(group, 0);
}

fn main() {}
