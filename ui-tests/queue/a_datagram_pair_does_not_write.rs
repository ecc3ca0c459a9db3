//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, RemoteAll, RemoteRegion, UnreliableDatagram};
use interlock::datagram::Recipient;

fn post<B: Brand>(
    pair: &mut QueuePair<B, ReadyToSend, UnreliableDatagram>,
    buffer: Buffer<B>,
    peer: &RemoteRegion<RemoteAll>,
    recipient: &Recipient<B>,
) {
    let _ = (peer, recipient);
    let _ = pair.post_write(buffer, peer);
}

fn main() {}
