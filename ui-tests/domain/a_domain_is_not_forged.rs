//! Rule D6: a brand cannot be made up.
//! Error: cannot construct `ProtectionDomain<_>` with struct literal syntax due to private fields

use interlock::ProtectionDomain;

fn forge<One, Other>(domain: ProtectionDomain<One>) -> ProtectionDomain<Other> {
    drop(domain);
    ProtectionDomain {}
}

fn main() {}
