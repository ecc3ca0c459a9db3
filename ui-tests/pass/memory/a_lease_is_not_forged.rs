//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::{MemoryRegion, RemoteWrite};

fn forge<B>(region: MemoryRegion<B, RemoteWrite>) -> MemoryRegion<B, RemoteWrite> {
    region
}

fn main() {}
