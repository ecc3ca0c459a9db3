//! Hole R-5: any address and length, registered in safe code.
//! Error: E0277

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>) {
    let _ = domain.register::<LocalWrite, _>(std::ptr::slice_from_raw_parts_mut(0x1000 as *mut u8, 1 << 30));
}

fn main() {}
