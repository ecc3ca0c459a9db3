//! Rule M3: buffers are made of memory that the device may write and no peer reaches.

use interlock::{Brand, LocalWrite, MemoryRegion};

fn split<B: Brand>(region: MemoryRegion<B, LocalWrite>) {
    let _ = region.split();
}

fn main() {}
