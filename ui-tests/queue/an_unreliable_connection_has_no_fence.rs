//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, RemoteAll, RemoteRegion, UnreliableConnection, WorkRequest};
use interlock::datagram::Recipient;

fn post<B: Brand>(
    pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>,
    buffer: Buffer<B>,
    peer: &RemoteRegion<RemoteAll>,
    recipient: &Recipient<B>,
) {
    let _ = (peer, recipient);
    let _ = pair.post(WorkRequest::send(buffer).fenced());
}

fn main() {}
