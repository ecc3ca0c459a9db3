//! Rule Q12: a lent batch settles on state that its closure cannot reach.
//! Error: E0597

use interlock::{Brand, Inline, QueuePair, WorkRequest};

fn post<B: Brand>(pair: &mut QueuePair<B>) {
    let _ = pair.batch(|batch| {
        let bytes = [7; 8];
        let _ = batch.post(WorkRequest::send(Inline(&bytes)));
    });
}

fn main() {}
