//! Rule M3: buffers are made of memory that the device may write and no peer reaches.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteRead};

fn split<B: Brand>(region: MemoryRegion<B, RemoteRead>) {
    let _ = region.split();
}

fn main() {}
