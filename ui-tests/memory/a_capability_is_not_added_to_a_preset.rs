//! Rule M8: rights are presets; none has a peer write without the device's own.
//! Error: E0117

use interlock::{Brand, MemoryRegion, RemoteWrite};
use interlock::access::PeerCannotWrite;

impl PeerCannotWrite for RemoteWrite {}
fn look<B: Brand, A: PeerCannotWrite>(region: &MemoryRegion<B, A>) -> usize {
    region.as_bytes().len()
}

fn look_at<B: Brand>(region: &MemoryRegion<B, RemoteWrite>) -> usize {
    look(region)
}

fn main() {}
