//! Rule M27: a window is bound over memory that was registered for that, of its own domain.
//! Error: E0308

use interlock::{Brand, QueuePair, RemoteWrite};
use interlock::window::{Bindable, Window};

fn bind<B: Brand, C: Brand>(pair: &mut QueuePair<C>, window: Window<B>, part: Bindable<B>, _: Bindable<C>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, part);
}

fn main() {}
