//! Rule D2: a queue pair completes on completion queues of its own domain.
//! Error: E0308

use interlock::{Errored, Poller, QueuePair};

interlock::domain! { struct Storage; struct Scratch; }

fn drain(pair: &mut QueuePair<Storage, Errored>, poller: &mut Poller<Scratch>) {
    let _ = pair.drain(poller, std::time::Duration::from_secs(1), |completion| drop(completion.check()));
}

fn main() {}
