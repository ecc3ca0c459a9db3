//! Rule D2: a queue pair completes on completion queues of its own domain.

use interlock::{CompletionQueue, Limits, ProtectionDomain, Scoped};

fn create<'one>(domain: &ProtectionDomain<Scoped<'one>>, queue: &CompletionQueue<Scoped<'one>>) {
    let _ = domain.reliable(queue, &Limits::default());
}

fn main() {}
