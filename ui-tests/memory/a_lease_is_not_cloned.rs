//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0599

use interlock::{Brand, RemoteWrite};
use interlock::memory::Lease;

fn twice<B: Brand>(lease: Lease<B, RemoteWrite>) -> [Lease<B, RemoteWrite>; 2] {
    [lease.clone(), lease]
}

fn main() {}
