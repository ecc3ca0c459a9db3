//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::window::RemoteWindow;
use interlock::{Brand, Buffer, QueuePair, ReadyToSend, ReliableConnection, RemoteWrite};

fn end<B: Brand>(
    pair: &mut QueuePair<B, ReadyToSend, ReliableConnection>,
    done: Buffer<B>,
    window: RemoteWindow<RemoteWrite>,
) {
    let _ = pair.post_send_invalidating(done, &window);
}

fn main() {}
