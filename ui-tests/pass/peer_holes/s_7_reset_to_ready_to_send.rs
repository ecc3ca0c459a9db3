//! Hole S-7: a transition from Reset directly to Ready To Send.

use interlock::attributes::RtsAttributes;
use interlock::{Brand, QueuePair, ReadyToReceive};

fn go<B: Brand>(pair: QueuePair<B, ReadyToReceive>, attributes: &RtsAttributes) {
    let _ = pair.into_rts(attributes);
}

fn main() {}
