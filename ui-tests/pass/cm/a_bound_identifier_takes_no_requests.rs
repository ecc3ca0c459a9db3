//! Rule N1: a call exists only in the states that allow it.

use interlock::cm::Listener;
use std::time::Duration;

fn take(mut id: Listener, timeout: Duration) {
    let _ = id.next(timeout);
}

fn main() {}
