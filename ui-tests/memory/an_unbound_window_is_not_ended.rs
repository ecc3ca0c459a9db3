//! Rule M29: what is not bound is not ended, and what is bound is not bound again.
//! Error: E0308

use interlock::{Brand, QueuePair};
use interlock::window::Window;

fn end<B: Brand>(pair: &mut QueuePair<B>, window: Window<B>) {
    let _ = pair.post_revoke(window);
}

fn main() {}
