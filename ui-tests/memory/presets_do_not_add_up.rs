//! Rule M8: rights are presets; none has a peer write without the device's own.
//! Error: E0277

use interlock::{Brand, LocalRead, ProtectionDomain, RemoteWrite};
use interlock::memory::Pages;

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Pages) {
    let _ = domain.register::<(LocalRead, RemoteWrite), _>(memory);
}

fn main() {}
