//! Rule M29: what is not bound is not ended, and what is bound is not bound again.
//! Error: E0382

use interlock::{Brand, QueuePair, RemoteWrite};
use interlock::window::{Bindable, Window};

fn bind<B: Brand>(pair: &mut QueuePair<B>, window: Window<B>, one: Bindable<B>, other: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, one);
    let _ = pair.post_bind::<RemoteWrite, _>(window, other);
}

fn main() {}
