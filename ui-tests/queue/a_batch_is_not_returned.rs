//! Rule Q12: a lent batch settles on state that its closure cannot reach.
//! Error: lifetime may not live long enough

use interlock::{Brand, QueuePair};

fn keep<B: Brand>(pair: &mut QueuePair<B>) {
    let _ = pair.batch(|batch| batch);
}

fn main() {}
