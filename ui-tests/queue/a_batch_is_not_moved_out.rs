//! Rule Q12: a lent batch settles on state that its closure cannot reach.
//! Error: E0507

use interlock::{Brand, QueuePair};

fn keep<B: Brand>(pair: &mut QueuePair<B>) {
    let _ = pair.batch(|batch| std::mem::forget(*batch));
}

fn main() {}
