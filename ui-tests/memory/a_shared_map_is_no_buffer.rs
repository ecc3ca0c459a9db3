//! Rule M23: what other processes or devices write is never a slice and never a buffer.
//! Error: E0277

use interlock::{Brand, LocalWrite, ProtectionDomain};
use interlock::memory::SharedMap;

fn register<B: Brand>(domain: &ProtectionDomain<B>, map: SharedMap) {
    let _ = domain.register::<LocalWrite, _>(map);
}

fn main() {}
