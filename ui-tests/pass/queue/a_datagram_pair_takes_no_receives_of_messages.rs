//! Rule H4: datagrams come to receives that have room for their header.

use interlock::shared::{Datagrams, SharedReceiveQueue};
use interlock::{CompletionQueue, Limits};

interlock::domain! { struct Storage; }

fn create(shared: &SharedReceiveQueue<Storage, Datagrams>, queue: &CompletionQueue<Storage>) {
    let _ = shared.datagram(queue, &Limits::default());
}

fn main() {}
