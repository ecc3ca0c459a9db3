//! Hole A-1: a slice of memory that a peer was granted to write.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteReadWrite};

fn grant<B: Brand>(region: &MemoryRegion<B, RemoteReadWrite>) -> u64 {
    let _granted = region.remote();
    region.as_bytes()[0].into()
}

fn main() {}
