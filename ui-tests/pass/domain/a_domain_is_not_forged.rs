//! Rule D6: a brand cannot be made up.

use interlock::ProtectionDomain;

fn forge<One>(domain: ProtectionDomain<One>) -> ProtectionDomain<One> {
    domain
}

fn main() {}
