//! Rule M25: static memory is only read.

use interlock::{Brand, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: &'static [u8]) {
    let _ = domain.register_static(memory);
}

fn main() {}
