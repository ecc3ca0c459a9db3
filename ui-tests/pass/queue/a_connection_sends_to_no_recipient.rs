//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::datagram::Recipient;
use interlock::{Brand, Buffer, QueuePair};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, recipient: &Recipient<B>) {
    let _ = recipient;
    let _ = pair.post_send(buffer);
}

fn main() {}
