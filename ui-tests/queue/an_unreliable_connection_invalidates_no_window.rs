//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0308

use interlock::{Brand, QueuePair, ReadyToSend, UnreliableConnection};
use interlock::window::{BoundWindow, Type2};

fn end<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>, window: BoundWindow<B, Type2>) {
    let _ = pair.post_revoke(window);
}

fn main() {}
