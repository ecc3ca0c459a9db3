//! Rule D2: a queue pair completes on completion queues of its own domain.

use interlock::{CompletionQueue, Limits, ProtectionDomain};

interlock::domain! { struct Storage; struct Scratch; }

fn create(domain: &ProtectionDomain<Storage>, sends: &CompletionQueue<Storage>, receives: &CompletionQueue<Storage>) {
    let _ = domain.reliable_on(sends, receives, &Limits::default());
}

fn main() {}
