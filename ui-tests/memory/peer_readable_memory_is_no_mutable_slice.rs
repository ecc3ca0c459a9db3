//! Rule M2: what a peer can reach is never `&mut [u8]`.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteRead};

fn fill<B: Brand>(region: &mut MemoryRegion<B, RemoteRead>) {
    region.as_bytes_mut().fill(7);
}

fn main() {}
