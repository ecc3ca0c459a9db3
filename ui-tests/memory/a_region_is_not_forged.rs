//! Rule M12: keys and grants come from devices and records, never from numbers.
//! Error: cannot construct `MemoryRegion<_, _, _>` with struct literal syntax due to private fields

use interlock::{LocalWrite, MemoryRegion, RemoteWrite};

fn forge<B>(region: MemoryRegion<B, RemoteWrite>) -> MemoryRegion<B, LocalWrite> {
    drop(region);
    MemoryRegion {}
}

fn main() {}
