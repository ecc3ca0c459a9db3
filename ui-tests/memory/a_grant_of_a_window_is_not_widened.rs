//! Rule M30: a window gives rights of peers, and a grant no more than its window has.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, RemoteRead};
use interlock::window::BoundWindow;

fn write<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, window: &BoundWindow<B>) {
    let _ = pair.post_write(buffer, &window.remote::<RemoteRead>().unwrap());
}

fn main() {}
