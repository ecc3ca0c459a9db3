//! Hole S-7: a transition from Reset directly to Ready To Send.
//! Error: E0277

use interlock::{Brand, QueuePair, Reset};
use interlock::attributes::RtsAttributes;

fn go<B: Brand>(pair: QueuePair<B, Reset>, attributes: &RtsAttributes) {
    let _ = pair.into_rts(attributes);
}

fn main() {}
