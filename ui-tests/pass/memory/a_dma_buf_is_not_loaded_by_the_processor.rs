//! Rule M24: memory that the processor may not reach is not read by it.

use interlock::memory::{OpaqueRegion, SharedMap};
use interlock::{Brand, RemoteWrite};

fn look<B: Brand>(region: &OpaqueRegion<B, RemoteWrite, SharedMap>) -> u64 {
    region.load(0).unwrap_or_default()
}

fn main() {}
