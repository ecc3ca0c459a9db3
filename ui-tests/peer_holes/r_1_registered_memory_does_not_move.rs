//! Hole R-1: a registered vector that grows, and leaves its pages to the device.
//! Error: E0382

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn grow<B: Brand>(domain: &ProtectionDomain<B>, mut memory: Vec<u8>) {
    let region = domain.register::<LocalWrite, _>(memory);
    memory.reserve(1 << 20);
    drop(region);
}

fn main() {}
