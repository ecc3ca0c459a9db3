//! Hole R-1: a registration that borrows memory for the length of a call.
//! Error: E0277

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Vec<u8>) {
    let _ = domain.register::<LocalWrite, _>(&memory[..]);
}

fn main() {}
