//! Rule M8: rights are presets; none has a peer write without the device's own.
//! Error: E0277

use interlock::{Brand, LocalRead, Pages, ProtectionDomain, RemoteWrite};

fn register<B: Brand>(domain: &ProtectionDomain<B>, memory: Pages) {
    let _ = domain.register::<(LocalRead, RemoteWrite), _>(memory);
}

fn main() {}
