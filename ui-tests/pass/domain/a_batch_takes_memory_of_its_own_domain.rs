//! Rule D1: memory is posted to queue pairs of its own protection domain only.

use interlock::{Buffer, QueuePair, WorkRequest};

interlock::domain! { struct Storage; struct Scratch; }

fn send(pair: &mut QueuePair<Storage>, buffer: Buffer<Storage>) {
    let _ = pair.batch(|batch| batch.post(WorkRequest::send(buffer)).is_ok());
}

fn main() {}
