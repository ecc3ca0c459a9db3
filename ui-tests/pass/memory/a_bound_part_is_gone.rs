//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.

use interlock::window::{Bindable, Window};
use interlock::{Brand, QueuePair, RemoteWrite};

fn bind<B: Brand>(pair: &mut QueuePair<B>, window: Window<B>, mut memory: Bindable<B>) {
    memory.fill(7);
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
