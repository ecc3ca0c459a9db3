//! Rule M1: what a peer can write is never `&[u8]`.

use interlock::{Brand, MemoryRegion, RemoteReadWrite};

fn look<B: Brand>(region: &MemoryRegion<B, RemoteReadWrite>) -> u64 {
    region.load(0).unwrap_or_default()
}

fn main() {}
