//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, QueuePair};
use interlock::state::SendQueueDrain;

fn go<B: Brand>(pair: QueuePair<B, SendQueueDrain>) {
    let _ = pair.into_sqd();
}

fn main() {}
