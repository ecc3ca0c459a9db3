//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::window::{BoundWindow, Type1};
use interlock::{Brand, QueuePair, ReadyToSend, UnreliableConnection};

fn end<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>, window: BoundWindow<B, Type1>) {
    let _ = pair.post_revoke(window);
}

fn main() {}
