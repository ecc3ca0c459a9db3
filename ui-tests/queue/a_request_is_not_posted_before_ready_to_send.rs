//! Rule Q3: a send work request is posted in Ready To Send only.
//! Error: E0277

use interlock::{Brand, Buffer, Init, QueuePair, WorkRequest};

fn post<B: Brand>(pair: &mut QueuePair<B, Init>, buffer: Buffer<B>) {
    let _ = pair.post(WorkRequest::send(buffer).unsignalled());
}

fn main() {}
