//! Rule M20: what a peer names from 0 on is not posted by address.
//! Error: E0277

use interlock::{Brand, MemoryRegion, RemoteRead, SharedBuffer};
use interlock::access::ZeroBased;

fn broadcast<B: Brand>(region: MemoryRegion<B, ZeroBased<RemoteRead>>) -> SharedBuffer<B> {
    region.share()
}

fn main() {}
