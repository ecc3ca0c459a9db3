//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::state::GoesTo;
use interlock::{Brand, Errored, QueuePair};

fn fail<B: Brand, S: GoesTo<Errored>>(pair: QueuePair<B, S>) {
    let _ = pair.into_error();
}

fn main() {}
