//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0599

use interlock::{Brand, Error, QueuePair, RtsAttributes};

fn go<B: Brand>(pair: QueuePair<B, Error>, with: &RtsAttributes) {
    let _ = pair.into_rts(with);
}

fn main() {}
