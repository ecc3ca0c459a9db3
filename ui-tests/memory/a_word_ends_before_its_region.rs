//! Rule M7: registered memory belongs to its region until it is deregistered.
//! Error: E0505

use interlock::{Brand, MemoryRegion, RemoteWrite};

fn late<B: Brand>(region: MemoryRegion<B, RemoteWrite>) {
    let Ok(word) = region.word(0) else { return };
    let _ = region.deregister();
    word.store(1);
}

fn main() {}
