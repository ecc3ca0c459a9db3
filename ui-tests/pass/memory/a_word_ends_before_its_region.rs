//! Rule M7: registered memory belongs to its region until it is deregistered.

use interlock::{Brand, MemoryRegion, RemoteWrite};

fn late<B: Brand>(region: MemoryRegion<B, RemoteWrite>) {
    let Ok(word) = region.word(0) else { return };
    word.store(1);
    let _ = region.deregister();
}

fn main() {}
