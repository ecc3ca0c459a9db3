//! Rule M5: a region ends only when all its bytes are back.

use interlock::{Brand, LocalWrite, MemoryRegion};

fn end<B: Brand>(region: MemoryRegion<B, LocalWrite>) {
    let _ = region.deregister();
}

fn main() {}
