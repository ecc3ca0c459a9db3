//! Rule N1: a call exists only in the states that allow it.

use interlock::cm::{RejectData, Request};

fn reject(id: Request) {
    let _ = id.reject(&RejectData::none());
}

fn main() {}
