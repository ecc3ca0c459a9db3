//! Hole S-6: a post in Reset.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, Reset, WorkRequest};

fn post<B: Brand>(pair: &mut QueuePair<B, Reset>, buffer: Buffer<B>) {
    let _ = pair.post(WorkRequest::send(buffer));
}

fn main() {}
