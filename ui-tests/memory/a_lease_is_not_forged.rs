//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0451

use interlock::{Lease, MemoryRegion, RemoteWrite};

fn forge<B>(region: MemoryRegion<B, RemoteWrite>) -> Lease<B, RemoteWrite, interlock::Pages> {
    Lease { region, until: None }
}

fn main() {}
