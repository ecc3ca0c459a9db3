//! Rule M2: what a peer can reach is never `&mut [u8]`.

use interlock::{Brand, MemoryRegion, RemoteRead};

fn rewrite<B: Brand>(region: &mut MemoryRegion<B, RemoteRead>) -> u8 {
    let bytes = region.as_bytes();
    let first = bytes[0];
    let _ = region.store(0, 7);
    first
}

fn main() {}
