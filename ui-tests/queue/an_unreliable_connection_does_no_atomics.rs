//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, RemoteAll, RemoteRegion, UnreliableConnection};
use interlock::datagram::Recipient;

fn post<B: Brand>(
    pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>,
    buffer: Buffer<B>,
    peer: &RemoteRegion<RemoteAll>,
    recipient: &Recipient<B>,
) {
    let _ = (peer, recipient);
    let _ = pair.post_fetch_and_add(buffer, peer, 1);
}

fn main() {}
