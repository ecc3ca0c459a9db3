//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::memory::Lease;
use interlock::{Brand, RemoteRead};

fn change<B: Brand>(lease: Lease<B, RemoteRead>) {
    lease.end().unwrap().fill(7);
}

fn main() {}
