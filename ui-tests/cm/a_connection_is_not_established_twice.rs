//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::Brand;
use interlock::cm::Connection;
use std::time::Duration;

fn wait<B: Brand>(id: Connection<B>, timeout: Duration) {
    let _ = id.wait(timeout);
}

fn main() {}
