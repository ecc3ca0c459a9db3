//! Rule M25: static memory is only read.
//! Error: E0597

use interlock::{Brand, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, first: u8) {
    let memory = [first; 64];
    let _ = domain.register_static(&memory);
}

fn main() {}
