//! Rule N4: private data fit the call that carries them.

use interlock::cm::{RejectData, Request};

fn reject(id: Request) {
    let _ = id.reject(&RejectData::none());
}

fn main() {}
