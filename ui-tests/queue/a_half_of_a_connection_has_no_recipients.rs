//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Addressed, Brand, Buffer, SendHalf, WorkRequest};

fn send<B: Brand>(half: &mut SendHalf<B>, memory: Addressed<B, Buffer<B>>) {
    let _ = half.post(WorkRequest::send(memory));
}

fn main() {}
