//! Rule C4: a completion queue has one poller.
//! Error: cannot construct `Poller<_>` with struct literal syntax due to private fields

use interlock::{Brand, CompletionQueue, Poller};

fn forge<B: Brand>(queue: &CompletionQueue<B>) -> Option<Poller<B>> {
    drop(queue.clone());
    Some(Poller {})
}

fn main() {}
