//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, Endpoint, QueuePair, Reset};

fn connect<B: Brand>(pair: QueuePair<B, Reset>, peer: &Endpoint) {
    let _ = pair.connect(peer);
}

fn main() {}
