//! Rule G1: memory that is lent is not the program's.

use interlock::aio::lend::Lending;
use interlock::memory::Lease;
use interlock::{Brand, Buffer, RemoteWrite};

fn keep<B: Brand>(lending: &Lending<B>, lease: Lease<B, RemoteWrite>) -> Option<Buffer<B>> {
    let lent = lending.lend(lease).ok()?;
    lent.end().ok()
}

fn main() {}
