//! Rule D1: memory is posted to queue pairs of its own protection domain only.

use interlock::datagram::Recipient;
use interlock::{Buffer, QueuePair, ReadyToSend, UnreliableDatagram};

interlock::domain! { struct Storage; }
interlock::domain! { struct Scratch; }

fn post(
    pair: &mut QueuePair<Storage, ReadyToSend, UnreliableDatagram>,
    buffer: Buffer<Storage>,
    to: &Recipient<Storage>,
) {
    let _ = pair.post_send_to(buffer, to);
}

fn main() {}
