//! Rule D1: memory is posted to queue pairs of its own protection domain only.
//! Error: E0277

use interlock::{Buffer, QueuePair, Scoped};

interlock::domain! { struct Storage; }

fn send<'pd>(pair: &mut QueuePair<Scoped<'pd>>, buffer: Buffer<Storage>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
