//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::{Brand, PeerPath, QueuePair, SendQueueDrain};

fn change<B: Brand>(pair: &mut QueuePair<B, SendQueueDrain>, path: &PeerPath) {
    let _ = pair.set_path(path);
}

fn main() {}
