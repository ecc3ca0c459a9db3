//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::scope::Exclusive;
use interlock::{Brand, Buffer, WorkRequest};

fn send<B: Brand>(pair: &mut Exclusive<B>, memory: Buffer<B>) {
    let _ = pair.post(WorkRequest::send(memory));
}

fn main() {}
