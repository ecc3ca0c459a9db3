//! Rule M30: a window gives rights of peers, and a grant no more than its window has.

use interlock::window::{Bindable, Window};
use interlock::{Brand, QueuePair, RemoteWrite};

fn bind<B: Brand>(pair: &mut QueuePair<B>, window: Window<B>, memory: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
