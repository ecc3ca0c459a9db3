//! Rule M7: registered memory belongs to its region until it is deregistered.

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>) {
    let memory = Box::new([0_u8; 64]);
    let _ = domain.register::<LocalWrite, Box<[u8]>>(memory);
}

fn main() {}
