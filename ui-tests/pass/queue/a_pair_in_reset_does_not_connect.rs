//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::{Brand, Endpoint, Init, QueuePair};

fn connect<B: Brand>(pair: QueuePair<B, Init>, peer: &Endpoint) {
    let _ = pair.connect(peer);
}

fn main() {}
