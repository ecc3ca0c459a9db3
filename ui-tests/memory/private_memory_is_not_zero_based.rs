//! Rule M20: what a peer names from 0 on is not posted by address.
//! Error: E0277

use interlock::{Brand, LocalWrite, ProtectionDomain};
use interlock::access::ZeroBased;
use interlock::memory::Pages;

fn register<B: Brand>(domain: &ProtectionDomain<B>, pages: Pages) {
    let _ = domain.register::<ZeroBased<LocalWrite>, _>(pages);
}

fn main() {}
