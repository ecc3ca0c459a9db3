//! Rule M7: registered memory belongs to its region until it is deregistered.

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn grow<B: Brand>(domain: &ProtectionDomain<B>, mut memory: Vec<u8>) {
    memory.push(7);
    let _region = domain.register::<LocalWrite, _>(memory);
}

fn main() {}
