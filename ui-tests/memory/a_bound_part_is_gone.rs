//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.
//! Error: E0382

use interlock::{Brand, QueuePair, RemoteWrite};
use interlock::window::{Bindable, Window};

fn bind<B: Brand>(pair: &mut QueuePair<B>, window: Window<B>, mut memory: Bindable<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
    memory.fill(7);
}

fn main() {}
