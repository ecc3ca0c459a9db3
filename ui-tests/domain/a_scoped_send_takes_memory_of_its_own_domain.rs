//! Rule D1: memory is posted to queue pairs of its own protection domain only.
//! Error: lifetime may not live long enough

use interlock::{Buffer, QueuePair, Scoped};

fn send<'one, 'other>(pair: &mut QueuePair<Scoped<'one>>, buffer: Buffer<Scoped<'other>>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
