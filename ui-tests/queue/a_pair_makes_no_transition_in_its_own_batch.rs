//! Rule Q12: a lent batch settles on state that its closure cannot reach.
//! Error: E0505

use interlock::{Brand, QueuePair};

fn stop<B: Brand>(mut pair: QueuePair<B>) {
    let _ = pair.batch(|batch| {
        let _ = pair.into_error();
        let _ = batch;
    });
}

fn main() {}
