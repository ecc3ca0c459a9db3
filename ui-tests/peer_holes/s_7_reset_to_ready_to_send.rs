//! Hole S-7: from Reset to Ready To Send at once.
//! Error: E0277

use interlock::{Brand, QueuePair, Reset};
use interlock::attributes::RtsAttributes;

fn go<B: Brand>(pair: QueuePair<B, Reset>, attributes: &RtsAttributes) {
    let _ = pair.into_rts(attributes);
}

fn main() {}
