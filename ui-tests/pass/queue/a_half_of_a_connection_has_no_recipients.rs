//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::queue::SendHalf;
use interlock::{Brand, Buffer, WorkRequest};

fn send<B: Brand>(half: &mut SendHalf<B>, memory: Buffer<B>) {
    let _ = half.post(WorkRequest::send(memory));
}

fn main() {}
