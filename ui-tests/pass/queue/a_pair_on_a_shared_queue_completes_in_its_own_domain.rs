//! Rule H2: a shared receive queue, its memory, its pairs and their completion queues are of one domain.

use interlock::shared::SharedReceiveQueue;
use interlock::{CompletionQueue, Limits};

interlock::domain! { struct Storage; struct Scratch; }

fn create(shared: &SharedReceiveQueue<Storage>, queue: &CompletionQueue<Storage>) {
    let _ = shared.reliable(queue, &Limits::default());
}

fn main() {}
