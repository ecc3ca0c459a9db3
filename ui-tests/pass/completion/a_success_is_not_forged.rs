//! Rule C3: a completion comes from the poller, once.

use interlock::{Brand, Buffer, Success};

fn use_once<B: Brand>(success: Success<B>) -> (interlock::WorkId, Option<Buffer<B>>) {
    let id = success.id();
    (id, success.into_buffer())
}

fn main() {}
