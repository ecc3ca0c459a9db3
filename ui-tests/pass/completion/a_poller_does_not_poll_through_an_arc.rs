//! Rule C4: a completion queue has one poller.

use interlock::{Brand, Poller};

use std::sync::Arc;

fn poll<B: Brand>(poller: &mut Arc<Poller<B>>) {
    let _ = Arc::get_mut(poller).map(|poller| poller.poll());
}

fn main() {}
