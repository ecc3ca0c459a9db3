//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, QueuePair, ReadyToSend, UnreliableDatagram};
use interlock::attributes::PeerRights;

fn change<B: Brand>(pair: &mut QueuePair<B, ReadyToSend, UnreliableDatagram>) {
    let _ = pair.set_peer_rights(PeerRights::NONE);
}

fn main() {}
