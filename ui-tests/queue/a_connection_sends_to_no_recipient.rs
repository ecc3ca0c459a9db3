//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair};
use interlock::datagram::Recipient;

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>, recipient: &Recipient<B>) {
    let _ = recipient;
    let _ = pair.post_send_to(buffer, recipient);
}

fn main() {}
