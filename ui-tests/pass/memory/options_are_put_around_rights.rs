//! Rule M8: rights are presets; none has a peer write without the device's own.

use interlock::{Brand, LocalRead, Pages, ProtectionDomain, RelaxedOrdering};

fn register<B: Brand>(domain: &ProtectionDomain<B>, pages: Pages) {
    let _ = domain.register::<RelaxedOrdering<LocalRead>, _>(pages);
}

fn main() {}
