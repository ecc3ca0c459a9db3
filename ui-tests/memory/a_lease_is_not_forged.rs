//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0451

use interlock::{MemoryRegion, RemoteWrite};
use interlock::memory::Lease;

fn forge<B>(region: MemoryRegion<B, RemoteWrite>) -> Lease<B, RemoteWrite, interlock::memory::Pages> {
    Lease { region, until: None }
}

fn main() {}
