//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::memory::Lease;
use interlock::{Brand, RemoteRegion, RemoteWrite};

fn late<B: Brand>(lease: Lease<B, RemoteWrite>) -> RemoteRegion<RemoteWrite> {
    lease.remote()
}

fn main() {}
