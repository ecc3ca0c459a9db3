//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::{Brand, Port, QueuePair, Reset};

fn go<B: Brand>(pair: QueuePair<B, Reset>, with: &Port) {
    let _ = pair.into_init(with);
}

fn main() {}
