//! Rule D1: memory is posted to queue pairs of its own protection domain only.

use interlock::{Buffer, QueuePair, Scoped};

fn send<'one>(pair: &mut QueuePair<Scoped<'one>>, buffer: Buffer<Scoped<'one>>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
