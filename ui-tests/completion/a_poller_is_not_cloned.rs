//! Rule C4: a completion queue has one poller.
//! Error: E0599

use interlock::{Brand, Poller};

fn twice<B: Brand>(poller: Poller<B>) {
    let _ = (poller.clone(), poller);
}

fn main() {}
