//! Rule M29: what is not bound is not ended, and what is bound is not bound again.

use interlock::window::UnsettledWindow;
use interlock::{Brand, QueuePair};

fn end<B: Brand>(pair: &mut QueuePair<B>, window: UnsettledWindow<B>) {
    let _ = (pair, window.dealloc());
}

fn main() {}
