//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::Brand;
use interlock::cm::Accepting;

fn end<B: Brand>(id: Accepting<B>) {
    let _ = id.disconnect();
}

fn main() {}
