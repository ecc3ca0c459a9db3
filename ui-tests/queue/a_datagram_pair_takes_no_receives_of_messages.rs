//! Rule H4: datagrams come to receives that have room for their header.
//! Error: E0277

use interlock::{CompletionQueue, Limits};
use interlock::shared::SharedReceiveQueue;

interlock::domain! { struct Storage; }

fn create(shared: &SharedReceiveQueue<Storage>, queue: &CompletionQueue<Storage>) {
    let _ = shared.datagram(queue, &Limits::default());
}

fn main() {}
