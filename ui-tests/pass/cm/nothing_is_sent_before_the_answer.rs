//! Rule N3: a queue pair that is being connected is out of reach until it is back.

use interlock::cm::Connection;
use interlock::{Brand, Buffer};

fn early<B: Brand>(mut id: Connection<B>, buffer: Buffer<B>) {
    let _ = id.pair.post_send(buffer);
}

fn main() {}
