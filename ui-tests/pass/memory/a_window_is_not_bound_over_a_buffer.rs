//! Rule M27: a window is bound over memory that was registered for that, of its own domain.

use interlock::window::{Bindable, Window};
use interlock::{Brand, QueuePair, RemoteWrite};

fn bind<B: Brand>(pair: &mut QueuePair<B>, window: Window<B>, memory: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
