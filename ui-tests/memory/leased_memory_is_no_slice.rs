//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0277

use interlock::{Brand, RemoteWrite};
use interlock::memory::Lease;

fn look<B: Brand>(lease: Lease<B, RemoteWrite>) -> Vec<u8> {
    lease.as_bytes().to_vec()
}

fn main() {}
