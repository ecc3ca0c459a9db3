//! Rule M6: registered memory holds types for which any bytes are a value, and which have no padding.

use interlock::{Brand, LocalWrite, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Box<[u64]>) {
    let _ = domain.register::<LocalWrite, _>(memory);
}

fn main() {}
