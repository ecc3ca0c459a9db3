//! Rule M8: rights are presets; none has a peer write without the device's own.
//! Error: E0277

use interlock::{Brand, ProtectionDomain};
use interlock::access::RelaxedOrdering;
use interlock::memory::Pages;

fn register<B: Brand>(domain: &ProtectionDomain<B>, pages: Pages) {
    let _ = domain.register::<RelaxedOrdering<()>, _>(pages);
}

fn main() {}
