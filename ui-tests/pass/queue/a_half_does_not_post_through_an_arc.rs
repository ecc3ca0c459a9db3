//! Rule Q11: one thread posts to a work queue at a time.

use interlock::queue::SendHalf;
use interlock::{Brand, Buffer};

use std::sync::Arc;

fn post<B: Brand>(send: &mut Arc<SendHalf<B>>, buffer: Buffer<B>) {
    let _ = Arc::get_mut(send).map(|send| send.post_send(buffer));
}

fn main() {}
