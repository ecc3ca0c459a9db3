//! Rule N2: a step takes its identifier; only its result goes on.

use interlock::Brand;
use interlock::cm::Connecting;
use std::time::Duration;

fn twice<B: Brand>(id: Connecting<B>, timeout: Duration) {
    let _ = id.wait(timeout);
}

fn main() {}
