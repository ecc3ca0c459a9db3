//! Rule M2: what a peer can reach is never `&mut [u8]`.

use interlock::{Brand, MemoryRegion, RemoteReadWrite};

fn store<B: Brand>(region: &MemoryRegion<B, RemoteReadWrite>) {
    let _ = region.word(0).map(|word| word.store(1));
}

fn main() {}
