//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::cm::Listener;

fn listen(id: Listener) {
    let _ = id.listen(0);
}

fn main() {}
