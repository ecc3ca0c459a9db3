//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, QueuePair};
use interlock::attributes::RtrAttributes;
use interlock::state::SendQueueDrain;

fn go<B: Brand>(pair: QueuePair<B, SendQueueDrain>, with: &RtrAttributes) {
    let _ = pair.into_rtr(with);
}

fn main() {}
