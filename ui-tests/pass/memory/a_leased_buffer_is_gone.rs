//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::{Brand, Buffer, ProtectionDomain, RemoteWrite};
use std::time::Duration;

fn lend<B: Brand>(domain: &ProtectionDomain<B>, mut buffer: Buffer<B>) {
    buffer.fill(7);
    let lease = domain.lease::<RemoteWrite, _>(buffer, Duration::MAX);
    drop(lease);
}

fn main() {}
