//! Rule M23: what other processes or devices write is never a slice and never a buffer.
//! Error: E0599

use interlock::{Brand, RemoteRead};
use interlock::memory::{OpaqueRegion, SharedMap};

fn look<B: Brand>(region: &OpaqueRegion<B, RemoteRead, SharedMap>) -> u64 {
    u64::from(region.as_bytes()[0])
}

fn main() {}
