//! Hole J-3: memory that a peer writes, as a slice.
//! Error: E0608

use interlock::{Brand, MemoryRegion, RemoteAll};

fn look<B: Brand>(region: &MemoryRegion<B, RemoteAll, Vec<u64>>) -> u64 {
    region[0]
}

fn main() {}
