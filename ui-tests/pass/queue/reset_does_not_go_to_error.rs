//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::{Brand, QueuePair, ReadyToSend};

fn go<B: Brand>(pair: QueuePair<B, ReadyToSend>) {
    let _ = pair.into_error();
}

fn main() {}
