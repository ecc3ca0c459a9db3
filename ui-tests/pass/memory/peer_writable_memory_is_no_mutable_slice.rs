//! Rule M1: what a peer can write is never `&[u8]`.

use interlock::{Brand, MemoryRegion, RemoteWrite};

fn fill<B: Brand>(region: &mut MemoryRegion<B, RemoteWrite>) {
    let _ = region.write_from(0, &[7; 8]);
}

fn main() {}
