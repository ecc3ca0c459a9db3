//! Rule Q5: states and their capabilities are sealed.
//! Error: E0117

use interlock::{Brand, QueuePair, ReadyToSend, Reset};
use interlock::attributes::RtsAttributes;
use interlock::state::GoesTo;

impl GoesTo<ReadyToSend> for Reset {}
fn up<B: Brand, S: GoesTo<ReadyToSend>>(pair: QueuePair<B, S>, with: &RtsAttributes) {
    let _ = pair.into_rts(with);
}

fn early<B: Brand>(pair: QueuePair<B, Reset>, with: &RtsAttributes) {
    up(pair, with);
}

fn main() {}
