//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0277

use interlock::{Brand, Buffer, LocalWrite, ProtectionDomain};
use std::time::Duration;

fn lend<B: Brand>(domain: &ProtectionDomain<B>, buffer: Buffer<B>) {
    drop(domain.lease::<LocalWrite, _>(buffer, Duration::MAX));
}

fn main() {}
