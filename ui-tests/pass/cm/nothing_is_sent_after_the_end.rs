//! Rule N3: a queue pair that is being connected is out of reach until it is back.

use interlock::cm::Connection;
use interlock::{Brand, Buffer};

fn late<B: Brand>(mut ended: Connection<B>, buffer: Buffer<B>) {
    let _ = ended.pair.post_send(buffer);
}

fn main() {}
