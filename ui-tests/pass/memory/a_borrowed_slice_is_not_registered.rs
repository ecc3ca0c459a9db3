//! Rule M7: registered memory belongs to its region until it is deregistered.

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: &'static mut [u8]) {
    let _ = domain.register::<LocalWrite, _>(memory);
}

fn main() {}
