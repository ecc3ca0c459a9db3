//! Rule M9: a buffer is the only handle of its bytes.
//! Error: E0599

use interlock::{Brand, LocalWrite, MemoryRegion};

fn twice<B: Brand>(region: MemoryRegion<B, LocalWrite>) {
    let _ = (region.clone(), region);
}

fn main() {}
