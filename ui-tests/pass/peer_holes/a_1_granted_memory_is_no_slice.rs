//! Hole A-1: a slice of memory that a peer was granted to write.

use interlock::{Brand, MemoryRegion, RemoteReadWrite};

fn grant<B: Brand>(region: &MemoryRegion<B, RemoteReadWrite>) -> u64 {
    let _granted = region.remote();
    region.load(0).unwrap_or_default()
}

fn main() {}
