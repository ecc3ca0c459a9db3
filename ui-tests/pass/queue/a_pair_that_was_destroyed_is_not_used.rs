//! Rule Q6: a transition takes the pair; only its result goes on.

use interlock::{Brand, QueuePair};

fn stale<B: Brand>(pair: QueuePair<B>) -> u32 {
    let number = pair.number().value();
    let _ = pair.destroy();
    number
}

fn main() {}
