//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::memory::Lease;
use interlock::{Brand, RemoteRead};

fn late<B: Brand>(lease: Lease<B, RemoteRead>) -> u8 {
    let bytes = lease.as_bytes();
    bytes[0]
}

fn main() {}
