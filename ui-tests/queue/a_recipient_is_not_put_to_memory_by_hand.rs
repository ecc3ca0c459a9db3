//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0451

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, UnreliableDatagram};
use interlock::datagram::{Addressed, Recipient};

type Pair<B> = QueuePair<B, ReadyToSend, UnreliableDatagram>;
fn send<B: Brand>(_: &mut Pair<B>, memory: Buffer<B>, recipient: Recipient<B>) {
    let _ = Addressed { memory, recipient };
}

fn main() {}
