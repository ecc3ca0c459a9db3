//! Rule D6: a brand cannot be made up.

use interlock::{Brand, ProtectionDomain};

interlock::domain! { struct Mine; }

fn brand<B: Brand>(_: ProtectionDomain<B>) {}

fn mine(domain: ProtectionDomain<Mine>) {
    brand(domain);
}

fn main() {}
