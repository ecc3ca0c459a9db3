//! Rule M23: what other processes or devices write is never a slice and never a buffer.
//! Error: E0277

use interlock::{Brand, ProtectionDomain, RemoteWrite};
use interlock::memory::Pages;

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Pages) {
    let _ = domain.register_opaque::<RemoteWrite, _>(memory);
}

fn main() {}
