//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0382

use interlock::{Brand, Lease, RemoteRegion, RemoteWrite};

fn late<B: Brand>(lease: Lease<B, RemoteWrite>) -> RemoteRegion<RemoteWrite> {
    let _ = lease.end();
    lease.remote()
}

fn main() {}
