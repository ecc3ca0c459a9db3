//! Rule N2: a step takes its identifier; only its result goes on.

use interlock::cm::Idle;
use std::net::SocketAddr;

fn twice(id: Idle, at: SocketAddr) {
    let _ = id.bind(at);
}

fn main() {}
