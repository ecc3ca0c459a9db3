//! Rule C3: a completion comes from the poller, once.
//! Error: E0382

use interlock::{Brand, Buffer, Success};

fn twice<B: Brand>(success: Success<B>) -> (Option<Buffer<B>>, Option<Buffer<B>>) {
    (success.into_buffer(), success.into_received().ok())
}

fn main() {}
