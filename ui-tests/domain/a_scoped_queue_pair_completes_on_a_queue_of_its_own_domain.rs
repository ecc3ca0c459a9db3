//! Rule D2: a queue pair completes on completion queues of its own domain.
//! Error: lifetime may not live long enough

use interlock::{CompletionQueue, Limits, ProtectionDomain, Scoped};

fn create<'one, 'other>(domain: &ProtectionDomain<Scoped<'one>>, queue: &CompletionQueue<Scoped<'other>>) {
    let _ = domain.reliable(queue, &Limits::default());
}

fn main() {}
