//! Rule M8: rights are presets; none has a peer write without the device's own.

use interlock::memory::Pages;
use interlock::{Brand, ProtectionDomain, RemoteReadWrite};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Pages) {
    let _ = domain.register::<RemoteReadWrite, _>(memory);
}

fn main() {}
