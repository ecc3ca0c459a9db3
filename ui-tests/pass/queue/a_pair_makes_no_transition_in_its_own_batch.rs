//! Rule Q12: a lent batch settles on state that its closure cannot reach.

use interlock::{Brand, QueuePair};

fn stop<B: Brand>(mut pair: QueuePair<B>) {
    let _ = pair.batch(|batch| {
        let _ = batch;
    });
    let _ = pair.into_error();
}

fn main() {}
