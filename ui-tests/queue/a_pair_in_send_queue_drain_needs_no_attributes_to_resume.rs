//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, QueuePair};
use interlock::attributes::RtsAttributes;
use interlock::state::SendQueueDrain;

fn resume<B: Brand>(pair: QueuePair<B, SendQueueDrain>, with: &RtsAttributes) {
    let _ = pair.into_rts(with);
}

fn main() {}
