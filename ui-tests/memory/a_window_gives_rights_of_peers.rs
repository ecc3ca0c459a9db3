//! Rule M30: a window gives rights of peers, and a grant no more than its window has.
//! Error: E0277

use interlock::{Brand, LocalWrite, QueuePair};
use interlock::window::{Bindable, Window};

fn bind<B: Brand>(pair: &mut QueuePair<B>, window: Window<B>, memory: Bindable<B>) {
    let _ = pair.post_bind::<LocalWrite, _>(window, memory);
}

fn main() {}
