//! Rule M29: what is not bound is not ended, and what is bound is not bound again.
//! Error: cannot construct `BoundWindow<_, _>` with struct literal syntax due to private fields

use interlock::window::{BoundWindow, Window};

fn forge<B>(window: Window<B>) -> BoundWindow<B> {
    drop(window);
    BoundWindow {}
}

fn main() {}
