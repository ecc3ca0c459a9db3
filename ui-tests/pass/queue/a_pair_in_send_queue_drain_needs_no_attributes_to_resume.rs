//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::attributes::RtsAttributes;
use interlock::state::SendQueueDrain;
use interlock::{Brand, QueuePair};

fn resume<B: Brand>(pair: QueuePair<B, SendQueueDrain>, with: &RtsAttributes) {
    let _ = (pair.resume(), with);
}

fn main() {}
