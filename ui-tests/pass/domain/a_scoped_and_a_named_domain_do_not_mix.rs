//! Rule D1: memory is posted to queue pairs of its own protection domain only.

use interlock::{Buffer, QueuePair, Scoped};

interlock::domain! { struct Storage; }

fn send<'pd>(pair: &mut QueuePair<Scoped<'pd>>, buffer: Buffer<Scoped<'pd>>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
