//! Rule M23: what other processes or devices write is never a slice and never a buffer.

use interlock::memory::{OpaqueRegion, SharedMap};
use interlock::{Brand, RemoteRead};

fn look<B: Brand>(region: &OpaqueRegion<B, RemoteRead, SharedMap>) -> u64 {
    region.load(0).unwrap_or_default()
}

fn main() {}
