//! Rule N6: identifiers for connections and for datagrams do not mix.
//! Error: E0599

use interlock::cm::Bound;
use std::net::IpAddr;

fn join(id: Bound, group: IpAddr) {
    let _ = id.join(group);
}

fn main() {}
