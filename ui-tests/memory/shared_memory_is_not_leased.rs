//! Rule M26: leased memory is the program's again when the lease has ended, and not before.
//! Error: E0277

use interlock::{Brand, ProtectionDomain, RemoteWrite, SharedBuffer};
use std::time::Duration;

fn lend<B: Brand>(domain: &ProtectionDomain<B>, share: SharedBuffer<B>) {
    drop(domain.lease::<RemoteWrite, _>(share, Duration::MAX));
}

fn main() {}
