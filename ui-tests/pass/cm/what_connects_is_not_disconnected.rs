//! Rule N1: a call exists only in the states that allow it.

use interlock::Brand;
use interlock::cm::Connection;

fn end<B: Brand>(id: Connection<B>) {
    let _ = id.disconnect();
}

fn main() {}
