//! Rule M26: leased memory is the program's again when the lease has ended, and not before.

use interlock::{Brand, ProtectionDomain, RemoteWrite, SharedBuffer};
use std::time::Duration;

fn lend<B: Brand>(domain: &ProtectionDomain<B>, share: SharedBuffer<B>) {
    let buffer = share.into_unique().unwrap();
    drop(domain.lease::<RemoteWrite, _>(buffer, Duration::MAX));
}

fn main() {}
