//! Rule D6: a brand cannot be made up.
//! Error: E0277

use interlock::{Brand, ProtectionDomain};

interlock::domain! { struct Storage; }

fn make(domain: &ProtectionDomain<u32>) {
    brand(domain);
}

fn brand<B: Brand>(_: &ProtectionDomain<B>) {}

fn main() {}
