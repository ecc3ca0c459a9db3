//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Buffer, WorkRequest};
use interlock::datagram::Addressed;
use interlock::queue::SendHalf;

fn send<B: Brand>(half: &mut SendHalf<B>, memory: Addressed<B, Buffer<B>>) {
    let _ = half.post(WorkRequest::send(memory));
}

fn main() {}
