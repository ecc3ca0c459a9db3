//! Rule M20: what a peer names from 0 on is not posted by address.

use interlock::{Brand, Pages, ProtectionDomain, RemoteWrite, ZeroBased};

fn register<B: Brand>(domain: &ProtectionDomain<B>, pages: Pages) {
    let _ = domain.register::<ZeroBased<RemoteWrite>, _>(pages);
}

fn main() {}
