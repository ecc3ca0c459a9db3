//! Rule Q1: a queue pair goes from state to state only as the specification has it.
//! Error: E0277

use interlock::{Brand, QueuePair};
use interlock::state::State;

fn fail<B: Brand, S: State>(pair: QueuePair<B, S>) {
    let _ = pair.into_error();
}

fn main() {}
