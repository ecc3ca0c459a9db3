//! Rule M7: registered memory belongs to its region until it is deregistered.
//! Error: E0277

use interlock::{Brand, LocalWrite, ProtectionDomain};
use interlock::memory::Memory;

struct Mine([u8; 64]);
impl Memory for Mine {}
fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Mine) {
    let _ = take(domain, memory);
}

fn take<B: Brand, M: Memory>(domain: &ProtectionDomain<B>, memory: M) -> bool {
    domain.register::<LocalWrite, _>(memory).is_ok()
}

fn main() {}
