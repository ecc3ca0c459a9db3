//! Rule Q6: a transition takes the pair; only its result goes on.
//! Error: E0599

use interlock::{Brand, QueuePair};

fn twice<B: Brand>(pair: QueuePair<B>) {
    let _ = (pair.clone(), pair);
}

fn main() {}
