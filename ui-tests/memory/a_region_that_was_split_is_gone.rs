//! Rule M5: a region ends only when all its bytes are back.
//! Error: E0382

use interlock::{Brand, LocalWrite, MemoryRegion};

fn end<B: Brand>(region: MemoryRegion<B, LocalWrite>) {
    let (rest, buffer) = region.split();
    let _ = region.deregister();
    drop((rest, buffer));
}

fn main() {}
