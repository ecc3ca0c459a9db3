//! Rule Q2: a transition takes exactly the attributes that it requires.
//! Error: E0277

use interlock::{Brand, QueuePair, ReadyToReceive};
use interlock::attributes::PeerRights;

fn change<B: Brand>(pair: &mut QueuePair<B, ReadyToReceive>) {
    let _ = pair.set_peer_rights(PeerRights::NONE);
}

fn main() {}
