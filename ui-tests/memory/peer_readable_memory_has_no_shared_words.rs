//! Rule M2: what a peer can reach is never `&mut [u8]`.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteRead};

fn store<B: Brand>(region: &MemoryRegion<B, RemoteRead>) {
    let _ = region.word(0).map(|word| word.store(1));
}

fn main() {}
