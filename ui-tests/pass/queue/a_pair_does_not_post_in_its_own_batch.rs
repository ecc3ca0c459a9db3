//! Rule Q12: a lent batch settles on state that its closure cannot reach.

use interlock::{Brand, Buffer, QueuePair, WorkRequest};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.batch(|batch| {
        let _ = batch.post(WorkRequest::send(buffer));
    });
}

fn main() {}
