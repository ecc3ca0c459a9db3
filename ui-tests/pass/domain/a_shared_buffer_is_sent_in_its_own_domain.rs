//! Rule D1: memory is posted to queue pairs of its own protection domain only.

use interlock::{QueuePair, SharedBuffer};

interlock::domain! { struct Storage; struct Scratch; }

fn send(pair: &mut QueuePair<Storage>, share: SharedBuffer<Storage>) {
    let _ = pair.post_send(share);
}

fn main() {}
