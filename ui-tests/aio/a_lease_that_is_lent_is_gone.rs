//! Rule G1: memory that is lent is not the program's.
//! Error: E0382

use interlock::aio::lend::Lending;
use interlock::memory::Lease;
use interlock::{Brand, Buffer, RemoteWrite};

fn keep<B: Brand>(lending: &Lending<B>, lease: Lease<B, RemoteWrite>) -> Option<Buffer<B>> {
    let _lent = lending.lend(lease).ok()?;
    lease.end().ok()
}

fn main() {}
