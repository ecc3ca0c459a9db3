//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::Brand;
use interlock::cm::Connecting;

fn end<B: Brand>(id: Connecting<B>) {
    let _ = id.disconnect();
}

fn main() {}
