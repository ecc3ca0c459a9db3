//! Rule M20: what a peer names from 0 on is not posted by address.

use interlock::access::OnDemand;
use interlock::{Brand, MemoryRegion, RemoteRead, SharedBuffer};

fn broadcast<B: Brand>(region: MemoryRegion<B, OnDemand<RemoteRead>>) -> SharedBuffer<B> {
    region.share()
}

fn main() {}
