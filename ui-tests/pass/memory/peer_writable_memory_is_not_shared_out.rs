//! Rule M1: what a peer can write is never `&[u8]`.

use interlock::{Brand, MemoryRegion, RemoteRead};

fn share<B: Brand>(region: MemoryRegion<B, RemoteRead>) {
    let _ = region.share();
}

fn main() {}
