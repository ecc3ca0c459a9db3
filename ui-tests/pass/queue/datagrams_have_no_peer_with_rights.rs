//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::attributes::PeerRights;
use interlock::{Brand, QueuePair, ReadyToSend, UnreliableConnection};

fn change<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableConnection>) {
    let _ = pair.set_peer_rights(PeerRights::NONE);
}

fn main() {}
