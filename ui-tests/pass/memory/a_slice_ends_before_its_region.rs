//! Rule M5: a region ends only when all its bytes are back.

use interlock::{Brand, LocalWrite, MemoryRegion};

fn end<B: Brand>(region: MemoryRegion<B, LocalWrite>) -> usize {
    let bytes = region.as_bytes();
    let length = bytes.len();
    let _ = region.deregister();
    length
}

fn main() {}
