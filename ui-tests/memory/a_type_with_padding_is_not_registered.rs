//! Rule M6: registered memory holds types for which any bytes are a value, and which have no padding.
//! Error: E0277

use interlock::{Brand, LocalWrite, ProtectionDomain};

#[derive(zerocopy::FromBytes, zerocopy::Immutable)]
#[repr(C)]
struct Record {
    _long: u64,
    _short: u8,
}

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Box<[Record]>) {
    let _ = domain.register::<LocalWrite, _>(memory);
}

fn main() {}
