//! Rule C4: a completion queue has one poller.

use interlock::{Brand, CompletionQueue, Poller};

fn forge<B: Brand>(queue: &CompletionQueue<B>) -> Option<Poller<B>> {
    queue.take_poller()
}

fn main() {}
