//! Rule M30: a window gives rights of peers, and a grant no more than its window has.

use interlock::window::RemoteWindow;
use interlock::{Brand, Buffer, QueuePair, RemoteWrite};

fn end<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, grant: &RemoteWindow<RemoteWrite>) {
    let _ = pair.post_send_invalidating(buffer, grant);
}

fn main() {}
