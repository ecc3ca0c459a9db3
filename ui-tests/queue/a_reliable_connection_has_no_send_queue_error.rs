//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, QueuePair};

fn stop<B: Brand>(pair: QueuePair<B>) {
    let _ = pair.into_sqe();
}

fn main() {}
