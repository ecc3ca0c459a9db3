//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::attributes::PeerPath;
use interlock::state::SendQueueDrain;
use interlock::{Brand, QueuePair};

fn change<B: Brand>(pair: &mut QueuePair<B, SendQueueDrain>, path: &PeerPath) {
    let _ = pair.set_path(path);
}

fn main() {}
