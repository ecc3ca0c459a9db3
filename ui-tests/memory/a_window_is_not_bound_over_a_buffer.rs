//! Rule M27: a window is bound over memory that was registered for that, of its own domain.
//! Error: E0308

use interlock::{Brand, Buffer, QueuePair, RemoteWrite};
use interlock::window::Window;

fn bind<B: Brand>(pair: &mut QueuePair<B>, window: Window<B>, memory: Buffer<B>) {
    let _ = pair.post_bind::<RemoteWrite, _>(window, memory);
}

fn main() {}
