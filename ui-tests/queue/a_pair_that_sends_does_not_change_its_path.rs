//! Rule Q2: a transition takes exactly the attributes that it requires.
//! Error: E0277

use interlock::{Brand, QueuePair, ReadyToSend};
use interlock::attributes::PeerPath;

fn change<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, path: &PeerPath) {
    let _ = pair.set_path(path);
}

fn main() {}
