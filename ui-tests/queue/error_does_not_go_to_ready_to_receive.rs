//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, Errored, QueuePair};
use interlock::attributes::RtrAttributes;

fn go<B: Brand>(pair: QueuePair<B, Errored>, with: &RtrAttributes) {
    let _ = pair.into_rtr(with);
}

fn main() {}
