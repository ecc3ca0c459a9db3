//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::{Brand, Init, QueuePair, RtrAttributes};

fn go<B: Brand>(pair: QueuePair<B, Init>, with: &RtrAttributes) {
    let _ = pair.into_rtr(with);
}

fn main() {}
