//! Rule Q2: a transition takes exactly the attributes that it requires.
//! Error: E0277

use interlock::{Brand, PeerRights, QueuePair, ReadyToReceive};

fn change<B: Brand>(pair: &mut QueuePair<B, ReadyToReceive>) {
    let _ = pair.set_peer_rights(PeerRights::NONE);
}

fn main() {}
