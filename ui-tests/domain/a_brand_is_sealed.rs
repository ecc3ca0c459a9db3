//! Rule D6: a brand cannot be made up.
//! Error: E0277

use interlock::{Brand, ProtectionDomain};

struct Mine;
impl Brand for Mine {}
fn brand<B: Brand>(_: ProtectionDomain<B>) {}

fn mine(domain: ProtectionDomain<Mine>) {
    brand(domain);
}

fn main() {}
