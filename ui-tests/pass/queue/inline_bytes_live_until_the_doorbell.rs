//! Rule Q12: a lent batch settles on state that its closure cannot reach.

use interlock::{Brand, Inline, QueuePair, WorkRequest};

fn post<B: Brand>(pair: &mut QueuePair<B>) {
    let bytes = [7; 8];
    let _ = pair.batch(|batch| {
        let _ = batch.post(WorkRequest::send(Inline(&bytes)));
    });
}

fn main() {}
