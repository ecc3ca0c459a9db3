//! Hole S-6: a post in Reset.

use interlock::{Brand, Buffer, QueuePair, ReadyToSend, WorkRequest};

fn post<B: Brand>(pair: &mut QueuePair<B, ReadyToSend>, buffer: Buffer<B>) {
    let _ = pair.post(WorkRequest::send(buffer));
}

fn main() {}
