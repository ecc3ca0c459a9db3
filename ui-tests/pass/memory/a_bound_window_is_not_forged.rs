//! Rule M29: what is not bound is not ended, and what is bound is not bound again.

use interlock::window::BoundWindow;

fn forge<B>(window: BoundWindow<B>) -> BoundWindow<B> {
    window
}

fn main() {}
