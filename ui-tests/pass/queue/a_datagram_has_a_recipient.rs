//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::datagram::Recipient;
use interlock::{Brand, Buffer, QueuePair, ReadyToSend, RemoteAll, RemoteRegion, UnreliableDatagram};

fn post<B: Brand>(
    pair: &mut QueuePair<B, ReadyToSend, UnreliableDatagram>,
    buffer: Buffer<B>,
    peer: &RemoteRegion<RemoteAll>,
    recipient: &Recipient<B>,
) {
    let _ = (peer, recipient);
    let _ = pair.post_send_to(buffer, recipient);
}

fn main() {}
