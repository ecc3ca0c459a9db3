//! Hole R-1: a registered vector that grows, and leaves its pages to the device.

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn grow<B: Brand>(domain: &ProtectionDomain<B>, mut memory: Vec<u8>) {
    memory.reserve(1 << 20);
    let region = domain.register::<LocalWrite, _>(memory);
    drop(region);
}

fn main() {}
