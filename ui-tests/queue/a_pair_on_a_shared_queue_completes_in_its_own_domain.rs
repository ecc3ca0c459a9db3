//! Rule H2: a shared receive queue, its memory, its pairs and their completion queues are of one domain.
//! Error: E0308

use interlock::{CompletionQueue, Limits};
use interlock::shared::SharedReceiveQueue;

interlock::domain! { struct Storage; struct Scratch; }

fn create(shared: &SharedReceiveQueue<Storage>, queue: &CompletionQueue<Scratch>) {
    let _ = shared.reliable(queue, &Limits::default());
}

fn main() {}
