//! Rule N1: a call exists only in the states that allow it.

use interlock::Brand;
use interlock::cm::Connecting;
use std::time::Duration;

fn wait<B: Brand>(id: Connecting<B>, timeout: Duration) {
    let _ = id.wait(timeout);
}

fn main() {}
