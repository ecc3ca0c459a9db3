//! Rule M29: what is not bound is not ended, and what is bound is not bound again.

use interlock::window::BoundWindow;

fn twice<B>(window: BoundWindow<B>) -> Vec<BoundWindow<B>> {
    vec![window]
}

fn main() {}
