//! Hole J-3: memory that a peer writes, as a slice.

use interlock::{Brand, MemoryRegion, RemoteAll};

fn look<B: Brand>(region: &MemoryRegion<B, RemoteAll, Vec<u64>>) -> u64 {
    region.load(0).unwrap_or_default()
}

fn main() {}
