//! Hole S-5: a guard is forgotten, and a second guard begins posts beside it.
//! Error: E0501

use interlock::{Brand, Buffer, QueuePair, WorkRequest};

fn begin<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) {
    let _ = pair.batch(|batch| {
        let _ = pair.batch(|inner| inner.post(WorkRequest::send(buffer)).is_ok());
        let _ = std::mem::ManuallyDrop::new(batch);
    });
}

fn main() {}
