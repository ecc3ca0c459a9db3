//! Rule M1: what a peer can write is never `&[u8]`.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteWrite};

fn share<B: Brand>(region: MemoryRegion<B, RemoteWrite>) {
    let _ = region.share();
}

fn main() {}
