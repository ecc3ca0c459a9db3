//! Rule M5: a region ends only when all its bytes are back.
//! Error: E0505

use interlock::{Brand, LocalWrite, MemoryRegion};

fn end<B: Brand>(region: MemoryRegion<B, LocalWrite>) -> usize {
    let bytes = region.as_bytes();
    let _ = region.deregister();
    bytes.len()
}

fn main() {}
