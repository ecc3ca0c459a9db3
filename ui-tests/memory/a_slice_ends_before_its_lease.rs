//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0505

use interlock::{Brand, RemoteRead};
use interlock::memory::Lease;

fn late<B: Brand>(lease: Lease<B, RemoteRead>) -> u8 {
    let bytes = lease.as_bytes();
    let _ = lease.end();
    bytes[0]
}

fn main() {}
