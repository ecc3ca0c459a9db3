//! Rule N3: a queue pair that is being connected is out of reach until it is back.
//! Error: E0609

use interlock::cm::Connecting;
use interlock::{Brand, Buffer};

fn early<B: Brand>(mut id: Connecting<B>, buffer: Buffer<B>) {
    let _ = id.pair.post_send(buffer);
}

fn main() {}
