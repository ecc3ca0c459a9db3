//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::{Brand, Init, QueuePair};

fn endpoint<B: Brand>(pair: &QueuePair<B, Init>) {
    let _ = pair.endpoint();
}

fn main() {}
