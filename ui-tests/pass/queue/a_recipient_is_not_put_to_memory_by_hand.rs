//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::datagram::Recipient;
use interlock::{Brand, Buffer, QueuePair, ReadyToSend, UnreliableDatagram};

type Pair<B> = QueuePair<B, ReadyToSend, UnreliableDatagram>;
fn send<B: Brand>(pair: &mut Pair<B>, memory: Buffer<B>, recipient: Recipient<B>) {
    let _ = pair.post_send_to(memory, &recipient);
}

fn main() {}
