//! Rule M30: a window gives rights of peers, and a grant no more than its window has.

use interlock::window::BoundWindow;
use interlock::{Brand, Buffer, QueuePair, RemoteWrite};

fn write<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, window: &BoundWindow<B>) {
    let _ = pair.post_write(buffer, &window.remote::<RemoteWrite>().unwrap());
}

fn main() {}
