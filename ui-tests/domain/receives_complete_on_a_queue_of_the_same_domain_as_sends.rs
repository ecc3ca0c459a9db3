//! Rule D2: a queue pair completes on completion queues of its own domain.
//! Error: E0308

use interlock::{CompletionQueue, Limits, ProtectionDomain};

interlock::domain! { struct Storage; struct Scratch; }

fn create(domain: &ProtectionDomain<Storage>, sends: &CompletionQueue<Storage>, receives: &CompletionQueue<Scratch>) {
    let _ = domain.reliable_on(sends, receives, &Limits::default());
}

fn main() {}
