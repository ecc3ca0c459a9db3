//! Rule M21: what relies on the order of a peer's writes is not offered where they have none.

use interlock::access::{OnDemand, RelaxedOrdering};
use interlock::{Brand, MemoryRegion, RemoteWrite};

fn is_done<B: Brand>(region: &MemoryRegion<B, OnDemand<RelaxedOrdering<RemoteWrite>>>) -> bool {
    region.word(0).is_ok_and(|flag| flag.load() == 1)
}

fn main() {}
