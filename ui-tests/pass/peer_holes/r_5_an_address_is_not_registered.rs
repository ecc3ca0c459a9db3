//! Hole R-5: any address and length, registered in safe code.

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>) {
    let _ = domain.register::<LocalWrite, _>(vec![0_u8; 1 << 20]);
}

fn main() {}
