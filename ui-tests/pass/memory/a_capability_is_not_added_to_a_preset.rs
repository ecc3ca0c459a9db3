//! Rule M8: rights are presets; none has a peer write without the device's own.

use interlock::access::PeerCannotWrite;
use interlock::{Brand, MemoryRegion, RemoteRead};

fn look<B: Brand, A: PeerCannotWrite>(region: &MemoryRegion<B, A>) -> usize {
    region.as_bytes().len()
}

fn look_at<B: Brand>(region: &MemoryRegion<B, RemoteRead>) -> usize {
    look(region)
}

fn main() {}
