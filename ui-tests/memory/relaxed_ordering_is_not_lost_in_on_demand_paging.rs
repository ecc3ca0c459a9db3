//! Rule M21: what relies on the order of a peer's writes is not offered where they have none.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteWrite};
use interlock::access::{OnDemand, RelaxedOrdering};

fn is_done<B: Brand>(region: &MemoryRegion<B, OnDemand<RelaxedOrdering<RemoteWrite>>>) -> bool {
    region.word(0).is_ok_and(|flag| flag.load_acquire() == 1)
}

fn main() {}
