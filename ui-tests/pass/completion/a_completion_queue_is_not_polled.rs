//! Rule C4: a completion queue has one poller.

use interlock::{Brand, CompletionQueue};

fn poll<B: Brand>(queue: &CompletionQueue<B>) {
    let _ = queue.take_poller().map(|mut poller| poller.poll().is_ok());
}

fn main() {}
