//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::attributes::RtrAttributes;
use interlock::{Brand, Init, QueuePair};

fn go<B: Brand>(pair: QueuePair<B, Init>, with: &RtrAttributes) {
    let _ = pair.into_rtr(with);
}

fn main() {}
