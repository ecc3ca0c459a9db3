//! Rule Q7: memory in flight is gone until its completion.

use interlock::{Brand, Buffer, QueuePair, WorkRequest};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.batch(|batch| {
        let _ = batch.post(WorkRequest::send(buffer));
    });
}

fn main() {}
