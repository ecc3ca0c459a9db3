//! Rule M11: bytes are viewed only as types for which they are a value.
//! Error: E0277

use interlock::{Brand, Buffer};

#[derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C)]
struct Record {
    long: u64,
    short: u8,
}

fn write<B: Brand>(buffer: &mut Buffer<B>) {
    if let Ok(record) = buffer.view_mut::<Record>() {
        (record.long, record.short) = (7, Default::default());
    }
}

fn main() {}
