//! Hole of rdma-io: memory that is dropped with a receive in flight.

use interlock::{Brand, LocalWrite, MemoryRegion, QueuePair};

fn receive<B: Brand>(pair: &mut QueuePair<B>, region: MemoryRegion<B, LocalWrite>) {
    let (rest, buffer) = region.split();
    let _ = pair.post_receive(buffer);
    drop(rest);
}

fn main() {}
