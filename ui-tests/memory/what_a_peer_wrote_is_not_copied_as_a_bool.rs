//! Rule M11: bytes are viewed only as types for which they are a value.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteWrite};

fn flags<B: Brand>(region: &MemoryRegion<B, RemoteWrite>, flags: &mut [bool]) {
    let _ = region.read_slice(0, flags);
}

fn main() {}
