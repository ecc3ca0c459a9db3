//! Rule M2: what a peer can reach is never `&mut [u8]`.

use interlock::{Brand, MemoryRegion, RemoteRead};

fn fill<B: Brand>(region: &mut MemoryRegion<B, RemoteRead>) {
    let _ = region.write_from(0, &[7; 8]);
}

fn main() {}
