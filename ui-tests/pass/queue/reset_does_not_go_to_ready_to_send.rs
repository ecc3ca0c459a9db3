//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::attributes::RtsAttributes;
use interlock::{Brand, QueuePair, ReadyToReceive};

fn go<B: Brand>(pair: QueuePair<B, ReadyToReceive>, with: &RtsAttributes) {
    let _ = pair.into_rts(with);
}

fn main() {}
