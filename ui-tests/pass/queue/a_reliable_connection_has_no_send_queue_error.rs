//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::{Brand, QueuePair, ReadyToSend, UnreliableConnection};

fn stop<B: Brand>(pair: QueuePair<B, ReadyToSend, UnreliableConnection>) {
    let _ = pair.into_sqe();
}

fn main() {}
