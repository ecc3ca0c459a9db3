//! Rule M29: what is not bound is not ended, and what is bound is not bound again.
//! Error: E0382

use interlock::{Brand, QueuePair};
use interlock::window::BoundWindow;

fn end<B: Brand>(pair: &mut QueuePair<B>, window: BoundWindow<B>) {
    let _ = pair.post_revoke(window);
    let _ = pair.post_revoke(window);
}

fn main() {}
