//! Rule N4: private data fit the call that carries them.
//! Error: E0308

use interlock::cm::{AcceptData, Request};

fn reject(id: Request) {
    let _ = id.reject(&AcceptData::none());
}

fn main() {}
