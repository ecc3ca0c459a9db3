//! Rule Q6: a transition takes the pair; only its result goes on.

use interlock::{Brand, QueuePair};

fn twice<B: Brand>(pair: QueuePair<B>) {
    let _ = pair;
}

fn main() {}
