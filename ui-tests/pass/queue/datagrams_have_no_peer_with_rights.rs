//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::{Brand, PeerRights, QueuePair, ReadyToSend, UnreliableConnection};

fn change<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>) {
    let _ = pair.set_peer_rights(PeerRights::NONE);
}

fn main() {}
