//! Rule N1: a call exists only in the states that allow it.

use interlock::cm::Idle;
use std::net::SocketAddr;
use std::time::Duration;

fn resolve(id: Idle, to: SocketAddr, timeout: Duration) {
    let _ = id.resolve(to, timeout);
}

fn main() {}
