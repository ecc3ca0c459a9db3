//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::{Brand, Errored, GoesTo, QueuePair};

fn fail<B: Brand, S: GoesTo<Errored>>(pair: QueuePair<B, S>) {
    let _ = pair.into_error();
}

fn main() {}
