//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0277

use interlock::{Brand, RemoteRead};
use interlock::memory::Lease;

fn change<B: Brand>(mut lease: Lease<B, RemoteRead>) {
    lease.as_bytes_mut().fill(7);
}

fn main() {}
