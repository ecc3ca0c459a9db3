//! Rule Q3: a send work request is posted in Ready To Send only.

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, WorkRequest};

fn post<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, buffer: Buffer<B>) {
    let _ = pair.batch(|batch| batch.post(WorkRequest::send(buffer)).is_ok());
}

fn main() {}
