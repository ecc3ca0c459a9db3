//! Rule N2: a step takes its identifier; only its result goes on.
//! Error: E0382

use interlock::cm::Idle;
use std::net::SocketAddr;
use std::time::Duration;

fn twice(id: Idle, to: SocketAddr, timeout: Duration) {
    let _ = id.resolve(to, timeout);
    let _ = id.resolve(to, timeout);
}

fn main() {}
