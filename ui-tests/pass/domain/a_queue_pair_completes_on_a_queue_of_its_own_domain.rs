//! Rule D2: a queue pair completes on completion queues of its own domain.

use interlock::{CompletionQueue, Limits, ProtectionDomain};

interlock::domain! { struct Storage; struct Scratch; }

fn create(domain: &ProtectionDomain<Storage>, queue: &CompletionQueue<Storage>) {
    let _ = domain.reliable(queue, &Limits::default());
}

fn main() {}
