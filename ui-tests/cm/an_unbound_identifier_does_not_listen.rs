//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::cm::Idle;

fn listen(id: Idle) {
    let _ = id.listen(0);
}

fn main() {}
