//! Rule Q12: a lent batch settles on state that its closure cannot reach.
//! Error: E0521

use interlock::{Brand, QueuePair};

fn keep<B: Brand>(pair: &mut QueuePair<B>) {
    let mut kept = None;
    let _ = pair.batch(|batch| kept = Some(batch));
    drop(kept);
}

fn main() {}
