//! Rule M1: what a peer can write is never `&[u8]`.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteWrite};

fn fill<B: Brand>(region: &mut MemoryRegion<B, RemoteWrite>) {
    region.as_bytes_mut().fill(7);
}

fn main() {}
