//! Rule M4: private memory is not granted to peers.
//! Error: E0277

use interlock::{Brand, LocalWrite, MemoryRegion};

fn grant<B: Brand>(region: &MemoryRegion<B, LocalWrite>) {
    let _ = region.remote();
}

fn main() {}
