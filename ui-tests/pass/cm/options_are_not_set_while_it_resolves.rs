//! Rule N1: a call exists only in the states that allow it.

use interlock::cm::Idle;

fn set(mut id: Idle) {
    let _ = id.set_type_of_service(0x20);
}

fn main() {}
