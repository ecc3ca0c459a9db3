//! Rule M8: rights are presets; none has a peer write without the device's own.

use interlock::access::Access;

use interlock::RemoteWrite as OnlyPeersWrite;
fn rights<A: Access>() {}

fn mine() {
    rights::<OnlyPeersWrite>();
}

fn main() {}
