//! Rule C4: a completion queue has one poller.
//! Error: E0599

use interlock::{Brand, CompletionQueue};

fn poll<B: Brand>(queue: &CompletionQueue<B>) {
    let _ = queue.poll();
}

fn main() {}
