//! Rule D1: memory is posted to queue pairs of its own protection domain only.
//! Error: E0308

use interlock::{Buffer, QueuePair, ReadyToSend, UnreliableDatagram};
use interlock::datagram::Recipient;

interlock::domain! { struct Storage; }
interlock::domain! { struct Scratch; }

fn post(pair: &mut QueuePair<Storage, ReadyToSend, UnreliableDatagram>, buffer: Buffer<Storage>, to: &Recipient<Scratch>) {
    let _ = pair.post_send_to(buffer, to);
}

fn main() {}
