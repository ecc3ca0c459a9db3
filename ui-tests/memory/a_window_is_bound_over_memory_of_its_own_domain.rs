//! Rule M27: a window is bound over memory that was registered for that, of its own domain.
//! Error: E0308

use interlock::{Brand, QueuePair, RemoteWrite};
use interlock::window::{Bindable, Window};

fn bind<B: Brand, C: Brand>(pair: &mut QueuePair<B>, window: Window<B>, memory: Bindable<C>, _: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
