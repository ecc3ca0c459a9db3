//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::memory::Lease;
use interlock::{Brand, RemoteWrite};

fn look<B: Brand>(lease: Lease<B, RemoteWrite>) -> Vec<u8> {
    lease.end().unwrap().to_vec()
}

fn main() {}
