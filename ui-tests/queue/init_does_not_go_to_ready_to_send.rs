//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, Init, QueuePair};
use interlock::attributes::RtsAttributes;

fn go<B: Brand>(pair: QueuePair<B, Init>, with: &RtsAttributes) {
    let _ = pair.into_rts(with);
}

fn main() {}
