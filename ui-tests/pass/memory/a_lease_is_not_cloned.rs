//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::memory::Lease;
use interlock::{Brand, RemoteWrite};

fn twice<B: Brand>(lease: Lease<B, RemoteWrite>) -> [Lease<B, RemoteWrite>; 1] {
    [lease]
}

fn main() {}
