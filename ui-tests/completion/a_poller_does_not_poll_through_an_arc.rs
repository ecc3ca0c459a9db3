//! Rule C4: a completion queue has one poller.
//! Error: E0596

use interlock::{Brand, Poller};

use std::sync::Arc;

fn poll<B: Brand>(poller: &mut Arc<Poller<B>>) {
    let _ = poller.poll();
}

fn main() {}
