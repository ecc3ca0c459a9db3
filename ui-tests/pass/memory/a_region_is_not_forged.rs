//! Rule M12: keys and grants come from devices and records, never from numbers.

use interlock::{MemoryRegion, RemoteWrite};

fn forge<B>(region: MemoryRegion<B, RemoteWrite>) -> MemoryRegion<B, RemoteWrite> {
    region
}

fn main() {}
