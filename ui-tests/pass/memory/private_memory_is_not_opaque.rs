//! Rule M23: what other processes or devices write is never a slice and never a buffer.

use interlock::memory::Pages;
use interlock::{Brand, ProtectionDomain, RemoteWrite};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Pages) {
    let _ = domain.register::<RemoteWrite, _>(memory);
}

fn main() {}
