//! Rule M1: what a peer can write is never `&[u8]`.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteAtomic};

fn look<B: Brand>(region: &MemoryRegion<B, RemoteAtomic>) -> u64 {
    region.as_bytes().iter().map(|&byte| u64::from(byte)).sum()
}

fn main() {}
