//! Rule D7: the run-time brand does not mix with other brands.
//! Error: E0308

use interlock::{Checked, CompletionQueue, Limits, ProtectionDomain, Scoped};

fn create<'pd>(domain: &ProtectionDomain<Checked>, queue: &CompletionQueue<Scoped<'pd>>) {
    let _ = domain.reliable(queue, &Limits::default());
}

fn main() {}
