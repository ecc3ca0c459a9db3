//! Rule N6: identifiers for connections and for datagrams do not mix.

use interlock::cm::{Bound, Datagrams};
use std::net::IpAddr;

fn join(id: Bound<Datagrams>, group: IpAddr) {
    let _ = id.join(group);
}

fn main() {}
