//! Hole of ruapc-rdma and others: any transition through a shared borrow.

use interlock::{Brand, QueuePair};

fn reset<B: Brand>(pair: QueuePair<B>) {
    let _ = pair.into_reset();
}

fn main() {}
