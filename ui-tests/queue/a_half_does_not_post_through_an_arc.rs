//! Rule Q11: one thread posts to a work queue at a time.
//! Error: E0596

use interlock::{Brand, Buffer};
use interlock::queue::SendHalf;

use std::sync::Arc;

fn post<B: Brand>(send: &mut Arc<SendHalf<B>>, buffer: Buffer<B>) {
    let _ = send.post_send(buffer);
}

fn main() {}
