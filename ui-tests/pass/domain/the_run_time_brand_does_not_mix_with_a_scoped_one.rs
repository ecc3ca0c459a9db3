//! Rule D7: the run-time brand does not mix with other brands.

use interlock::{CompletionQueue, Limits, ProtectionDomain, Scoped};

fn create<'pd>(domain: &ProtectionDomain<Scoped<'pd>>, queue: &CompletionQueue<Scoped<'pd>>) {
    let _ = domain.reliable(queue, &Limits::default());
}
