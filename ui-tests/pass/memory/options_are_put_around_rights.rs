//! Rule M8: rights are presets; none has a peer write without the device's own.

use interlock::access::RelaxedOrdering;
use interlock::memory::Pages;
use interlock::{Brand, LocalRead, ProtectionDomain};

fn register<B: Brand>(domain: &ProtectionDomain<B>, pages: Pages) {
    let _ = domain.register::<RelaxedOrdering<LocalRead>, _>(pages);
}

fn main() {}
