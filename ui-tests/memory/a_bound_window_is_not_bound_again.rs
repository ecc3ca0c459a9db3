//! Rule M29: what is not bound is not ended, and what is bound is not bound again.
//! Error: E0308

use interlock::{Brand, QueuePair, RemoteWrite};
use interlock::window::{Bindable, BoundWindow};

fn bind<B: Brand>(pair: &mut QueuePair<B>, window: BoundWindow<B>, memory: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
