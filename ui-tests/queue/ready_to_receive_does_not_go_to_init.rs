//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, Port, QueuePair, ReadyToReceive};

fn go<B: Brand>(pair: QueuePair<B, ReadyToReceive>, with: &Port) {
    let _ = pair.into_init(with);
}

fn main() {}
