//! Rule M1: what a peer can write is never `&[u8]`.

use interlock::access::RelaxedOrdering;
use interlock::{Brand, LocalWrite, MemoryRegion};

fn look<B: Brand>(region: &MemoryRegion<B, RelaxedOrdering<LocalWrite>>) -> usize {
    region.as_bytes().len()
}

fn main() {}
