//! Hole S-7: a transition from Reset directly to Ready To Send.

use interlock::{Brand, QueuePair, ReadyToReceive, RtsAttributes};

fn go<B: Brand>(pair: QueuePair<B, ReadyToReceive>, attributes: &RtsAttributes) {
    let _ = pair.into_rts(attributes);
}

fn main() {}
