//! Rule Q5: states and their capabilities are sealed.

use interlock::attributes::RtsAttributes;
use interlock::state::GoesTo;
use interlock::{Brand, QueuePair, ReadyToReceive, ReadyToSend};

fn up<B: Brand, S: GoesTo<ReadyToSend>>(pair: QueuePair<B, S>, with: &RtsAttributes) {
    let _ = pair.into_rts(with);
}

fn early<B: Brand>(pair: QueuePair<B, ReadyToReceive>, with: &RtsAttributes) {
    up(pair, with);
}

fn main() {}
