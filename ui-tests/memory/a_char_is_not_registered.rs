//! Rule M6: registered memory holds types for which any bytes are a value, and which have no padding.
//! Error: E0277

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Box<[char]>) {
    let _ = domain.register::<LocalWrite, _>(memory);
}

fn main() {}
