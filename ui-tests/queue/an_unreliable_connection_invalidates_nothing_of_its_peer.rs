//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, RemoteWrite, UnreliableConnection};
use interlock::window::RemoteWindow;

fn end<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>, done: Buffer<B>, window: RemoteWindow<RemoteWrite>) {
    let _ = pair.post_send_invalidating(done, &window);
}

fn main() {}
