//! Rule M7: registered memory belongs to its region until it is deregistered.

use interlock::memory::Memory;
use interlock::{Brand, LocalWrite, ProtectionDomain};

type Mine = Box<[u8]>;
fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Mine) {
    let _ = take(domain, memory);
}

fn take<B: Brand, M: Memory>(domain: &ProtectionDomain<B>, memory: M) -> bool {
    domain.register::<LocalWrite, _>(memory).is_ok()
}

fn main() {}
