//! Rule M25: static memory is only read.
//! Error: E0277

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: &'static [u8]) {
    let _ = domain.register::<LocalWrite, _>(memory);
}

fn main() {}
