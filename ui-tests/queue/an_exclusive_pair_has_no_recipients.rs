//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::scope::Exclusive;
use interlock::{Brand, Buffer, WorkRequest};
use interlock::datagram::Addressed;

fn send<B: Brand>(pair: &mut Exclusive<B>, memory: Addressed<B, Buffer<B>>) {
    let _ = pair.post(WorkRequest::send(memory));
}

fn main() {}
