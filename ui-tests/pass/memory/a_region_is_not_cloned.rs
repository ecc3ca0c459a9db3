//! Rule M9: a buffer is the only handle of its bytes.

use interlock::{Brand, LocalWrite, MemoryRegion};

fn twice<B: Brand>(region: MemoryRegion<B, LocalWrite>) {
    let _ = region;
}

fn main() {}
