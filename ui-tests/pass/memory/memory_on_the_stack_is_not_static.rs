//! Rule M25: static memory is only read.

use interlock::{Brand, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, first: u8) {
    let memory = vec![first; 64].leak();
    let _ = domain.register_static(memory);
}

fn main() {}
