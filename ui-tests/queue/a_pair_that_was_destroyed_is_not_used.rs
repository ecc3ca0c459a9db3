//! Rule Q6: a transition takes the pair; only its result goes on.
//! Error: E0382

use interlock::{Brand, QueuePair};

fn stale<B: Brand>(pair: QueuePair<B>) -> u32 {
    let _ = pair.destroy();
    pair.number().value()
}

fn main() {}
