//! Rule N1: a call exists only in the states that allow it.

use interlock::cm::Bound;

fn listen(id: Bound) {
    let _ = id.listen(0);
}

fn main() {}
