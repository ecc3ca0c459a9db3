//! Rule Q5: states and their capabilities are sealed.

use interlock::{Brand, GoesTo, QueuePair, ReadyToReceive, ReadyToSend, RtsAttributes};

fn up<B: Brand, S: GoesTo<ReadyToSend>>(pair: QueuePair<B, S>, with: &RtsAttributes) {
    let _ = pair.into_rts(with);
}

fn early<B: Brand>(pair: QueuePair<B, ReadyToReceive>, with: &RtsAttributes) {
    up(pair, with);
}

fn main() {}
