//! Rule C4: a completion queue has one poller.

use interlock::CompletionQueue;

fn forge<One>(queue: CompletionQueue<One>) -> CompletionQueue<One> {
    queue
}

fn main() {}
