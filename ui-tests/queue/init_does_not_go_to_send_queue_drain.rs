//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, Init, QueuePair};

fn go<B: Brand>(pair: QueuePair<B, Init>) {
    let _ = pair.into_sqd();
}

fn main() {}
