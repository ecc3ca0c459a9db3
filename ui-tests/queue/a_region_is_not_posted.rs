//! Rule Q7: memory in flight is gone until its completion.
//! Error: E0277

use interlock::{Brand, MemoryRegion, QueuePair, RemoteWrite};

fn post<B: Brand>(pair: &mut QueuePair<B>, region: MemoryRegion<B, RemoteWrite>) {
    let _ = pair.post_send(region);
}

fn main() {}
