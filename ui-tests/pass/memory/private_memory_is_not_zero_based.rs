//! Rule M20: what a peer names from 0 on is not posted by address.

use interlock::access::ZeroBased;
use interlock::memory::Pages;
use interlock::{Brand, ProtectionDomain, RemoteWrite};

fn register<B: Brand>(domain: &ProtectionDomain<B>, pages: Pages) {
    let _ = domain.register::<ZeroBased<RemoteWrite>, _>(pages);
}

fn main() {}
