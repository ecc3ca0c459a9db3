//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::{Brand, Lease, RemoteRead};

fn change<B: Brand>(lease: Lease<B, RemoteRead>) {
    lease.end().unwrap().fill(7);
}

fn main() {}
