//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::cm::Bound;
use std::time::Duration;

fn take(mut id: Bound, timeout: Duration) {
    let _ = id.next(timeout);
}

fn main() {}
