//! Rule Q6: a transition takes the pair; only its result goes on.

use interlock::{Brand, Init, QueuePair};

fn forge<B: Brand>(pair: QueuePair<B, Init>) -> QueuePair<B, Init> {
    pair
}

fn main() {}
