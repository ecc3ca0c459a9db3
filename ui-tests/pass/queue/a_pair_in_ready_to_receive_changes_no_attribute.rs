//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::attributes::PeerRights;
use interlock::{Brand, QueuePair, ReadyToSend};

fn change<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>) {
    let _ = pair.set_peer_rights(PeerRights::NONE);
}

fn main() {}
