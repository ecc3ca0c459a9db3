//! Rule M29: what is not bound is not ended, and what is bound is not bound again.

use interlock::window::BoundWindow;
use interlock::{Brand, QueuePair};

fn end<B: Brand>(pair: &mut QueuePair<B>, window: BoundWindow<B>) {
    let _ = pair.post_revoke(window);
}

fn main() {}
