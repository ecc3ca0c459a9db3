//! Rule M23: what other processes or devices write is never a slice and never a buffer.

use interlock::memory::SharedMap;
use interlock::{Brand, ProtectionDomain, RemoteRead};

fn register<B: Brand>(domain: &ProtectionDomain<B>, map: SharedMap) {
    let _ = domain.register_opaque::<RemoteRead, _>(map);
}

fn main() {}
