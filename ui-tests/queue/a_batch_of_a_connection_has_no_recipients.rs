//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair, WorkRequest};
use interlock::datagram::Addressed;

fn send<B: Brand>(pair: &mut QueuePair<B>, memory: Addressed<B, Buffer<B>>) {
    let _ = pair.batch(|batch| batch.post(WorkRequest::send(memory)).is_ok());
}

fn main() {}
