//! Rule M4: private memory is not granted to peers.

use interlock::{Brand, MemoryRegion, RemoteRead};

fn grant<B: Brand>(region: &MemoryRegion<B, RemoteRead>) {
    let _ = region.remote();
}

fn main() {}
