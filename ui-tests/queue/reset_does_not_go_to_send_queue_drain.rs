//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, QueuePair, Reset};

fn go<B: Brand>(pair: QueuePair<B, Reset>) {
    let _ = pair.into_sqd();
}

fn main() {}
