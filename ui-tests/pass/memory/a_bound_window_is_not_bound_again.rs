//! Rule M29: what is not bound is not ended, and what is bound is not bound again.

use interlock::window::{Bindable, Window};
use interlock::{Brand, QueuePair, RemoteWrite};

fn bind<B: Brand>(pair: &mut QueuePair<B>, window: Window<B>, memory: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
