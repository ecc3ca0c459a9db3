//! Hole S-7: from Reset to Ready To Send at once.

use interlock::attributes::RtsAttributes;
use interlock::{Brand, QueuePair, ReadyToReceive};

fn go<B: Brand>(pair: QueuePair<B, ReadyToReceive>, attributes: &RtsAttributes) {
    let _ = pair.into_rts(attributes);
}

fn main() {}
