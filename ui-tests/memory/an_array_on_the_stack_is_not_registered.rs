//! Rule M7: registered memory belongs to its region until it is deregistered.
//! Error: E0597

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>) {
    let mut memory = [0_u8; 64];
    let _ = domain.register::<LocalWrite, &'static mut [u8]>(&mut memory);
}

fn main() {}
