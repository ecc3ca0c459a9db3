//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0382

use interlock::{Brand, RemoteRegion, RemoteWrite};
use interlock::memory::Lease;

fn late<B: Brand>(lease: Lease<B, RemoteWrite>) -> RemoteRegion<RemoteWrite> {
    let _ = lease.end();
    lease.remote()
}

fn main() {}
