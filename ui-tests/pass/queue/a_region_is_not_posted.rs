//! Rule Q7: memory in flight is gone until its completion.

use interlock::{Brand, MemoryRegion, QueuePair, RemoteWrite};

fn post<B: Brand>(pair: &mut QueuePair<B>, region: MemoryRegion<B, RemoteWrite>) {
    let _ = (pair, region);
}

fn main() {}
