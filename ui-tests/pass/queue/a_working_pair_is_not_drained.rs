//! Rule Q1: a queue pair goes from state to state only as the specification has it.

use interlock::{Brand, Errored, Poller, QueuePair};

fn drain<B: Brand>(pair: &mut QueuePair<B, Errored>, poller: &mut Poller<B>) {
    let _ = pair.drain(poller, std::time::Duration::from_secs(1), |completion| drop(completion.check()));
}

fn main() {}
