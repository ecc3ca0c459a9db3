//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::cm::Resolved;
use std::net::SocketAddr;
use std::time::Duration;

fn resolve(id: Resolved, to: SocketAddr, timeout: Duration) {
    let _ = id.resolve(to, timeout);
}

fn main() {}
