//! Rule H4: datagrams come to receives that have room for their header.

use interlock::shared::SharedReceiveQueue;
use interlock::{CompletionQueue, Limits};

interlock::domain! { struct Storage; }

fn create(shared: &SharedReceiveQueue<Storage>, queue: &CompletionQueue<Storage>) {
    let _ = shared.unreliable(queue, &Limits::default());
}

fn main() {}
