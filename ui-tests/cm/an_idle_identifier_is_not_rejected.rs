//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::cm::{Idle, RejectData};

fn reject(id: Idle) {
    let _ = id.reject(&RejectData::none());
}

fn main() {}
