//! Rule Q7: memory in flight is gone until its completion.
//! Error: E0382

use interlock::{Brand, Buffer, QueuePair, WorkRequest};

fn post<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.batch(|batch| {
        let _ = batch.post(WorkRequest::send(buffer));
        drop(buffer);
    });
}

fn main() {}
