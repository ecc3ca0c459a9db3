//! Rule N3: a queue pair that is being connected is out of reach until it is back.
//! Error: E0277

use interlock::cm::Disconnected;
use interlock::{Brand, Buffer};

fn late<B: Brand>(mut ended: Disconnected<B>, buffer: Buffer<B>) {
    let _ = ended.pair.post_send(buffer);
}

fn main() {}
