//! Rule Q5: states and their capabilities are sealed.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair};
use interlock::state::PostSend;

enum Mine {}
impl PostSend for Mine {}
fn send<B: Brand>(pair: &mut QueuePair<B, Mine>, buffer: Buffer<B>) {
    let _ = pair.post_send(buffer);
}

fn main() {}
