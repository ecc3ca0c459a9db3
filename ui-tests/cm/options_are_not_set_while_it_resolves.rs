//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::cm::Resolving;

fn set(mut id: Resolving) {
    let _ = id.set_type_of_service(0x20);
}

fn main() {}
