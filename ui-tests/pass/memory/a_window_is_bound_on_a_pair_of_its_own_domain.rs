//! Rule M27: a window is bound over memory that was registered for that, of its own domain.

use interlock::window::{Bindable, Window};
use interlock::{Brand, QueuePair, RemoteWrite};

fn bind<B: Brand, C: Brand>(pair: &mut QueuePair<B>, window: Window<B>, part: Bindable<B>, _: Bindable<C>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, part);
}

fn main() {}
