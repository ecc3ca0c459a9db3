//! Rule M24: memory that the processor may not reach is not read by it.
//! Error: E0599

use interlock::{Brand, RemoteWrite};
use interlock::memory::{DmaBuf, OpaqueRegion};

fn look<B: Brand>(region: &OpaqueRegion<B, RemoteWrite, DmaBuf>) -> u64 {
    region.load(0).unwrap_or_default()
}

fn main() {}
