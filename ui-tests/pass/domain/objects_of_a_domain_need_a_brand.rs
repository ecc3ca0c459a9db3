//! Rule D6: a brand cannot be made up.

use interlock::{Brand, ProtectionDomain};

interlock::domain! { struct Storage; }

fn make(domain: &ProtectionDomain<Storage>) {
    brand(domain);
}

fn brand<B: Brand>(_: &ProtectionDomain<B>) {}

fn main() {}
