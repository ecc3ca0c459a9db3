//! Rule M8: rights are presets; none has a peer write without the device's own.
//! Error: E0277

use interlock::access::Access;

enum OnlyPeersWrite {}
impl Access for OnlyPeersWrite {}
fn rights<A: Access>() {}

fn mine() {
    rights::<OnlyPeersWrite>();
}

fn main() {}
