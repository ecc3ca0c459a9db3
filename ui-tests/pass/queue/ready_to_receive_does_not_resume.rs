//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::state::SendQueueDrain;
use interlock::{Brand, QueuePair};

fn go<B: Brand>(pair: QueuePair<B, SendQueueDrain>) {
    let _ = pair.resume();
}

fn main() {}
