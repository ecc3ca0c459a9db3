//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, Port, QueuePair};
use interlock::state::SendQueueDrain;

fn go<B: Brand>(pair: QueuePair<B, SendQueueDrain>, with: &Port) {
    let _ = pair.into_init(with);
}

fn main() {}
