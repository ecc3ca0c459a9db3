//! Rule M1: what a peer can write is never `&[u8]`.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteWrite};
use interlock::access::RelaxedOrdering;

fn look<B: Brand>(region: &MemoryRegion<B, RelaxedOrdering<RemoteWrite>>) -> usize {
    region.as_bytes().len()
}

fn main() {}
