//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0308

use interlock::{BoundWindow, Brand, QueuePair, ReadyToSend, Type2, UnreliableConnection};

fn end<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>, window: BoundWindow<B, Type2>) {
    let _ = pair.post_revoke(window);
}

fn main() {}
