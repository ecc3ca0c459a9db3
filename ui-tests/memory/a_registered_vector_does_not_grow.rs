//! Rule M7: registered memory belongs to its region until it is deregistered.
//! Error: E0382

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn grow<B: Brand>(domain: &ProtectionDomain<B>, mut memory: Vec<u8>) {
    let _region = domain.register::<LocalWrite, _>(memory);
    memory.push(7);
}

fn main() {}
