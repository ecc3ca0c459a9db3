//! Rule C4: a completion queue has one poller.
//! Error: cannot construct `CompletionQueue<_>` with struct literal syntax due to private fields

use interlock::CompletionQueue;

fn forge<One, Other>(queue: CompletionQueue<One>) -> CompletionQueue<Other> {
    drop(queue);
    CompletionQueue {}
}

fn main() {}
