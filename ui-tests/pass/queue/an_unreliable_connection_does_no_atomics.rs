//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::datagram::Recipient;
use interlock::{Brand, Buffer, QueuePair, ReadyToSend, ReliableConnection, RemoteAll, RemoteRegion};

fn post<B: Brand>(
    pair: &mut QueuePair<B, ReadyToSend, ReliableConnection>,
    buffer: Buffer<B>,
    peer: &RemoteRegion<RemoteAll>,
    recipient: &Recipient<B>,
) {
    let _ = (peer, recipient);
    let _ = pair.post_fetch_and_add(buffer, peer, 1);
}

fn main() {}
