//! Rule Q5: states and their capabilities are sealed.
//! Error: E0117

use interlock::{Brand, Buffer, Init, QueuePair};
use interlock::state::PostSend;

impl PostSend for Init {}
fn send<B: Brand, S: PostSend>(pair: &mut QueuePair<B, S>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn early<B: Brand>(pair: &mut QueuePair<B, Init>, buffer: Buffer<B>) {
    send(pair, buffer);
}

fn main() {}
