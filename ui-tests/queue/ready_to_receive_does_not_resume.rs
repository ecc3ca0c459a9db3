//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0599

use interlock::{Brand, QueuePair, ReadyToReceive};

fn go<B: Brand>(pair: QueuePair<B, ReadyToReceive>) {
    let _ = pair.resume();
}

fn main() {}
