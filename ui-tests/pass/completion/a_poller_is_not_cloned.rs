//! Rule C4: a completion queue has one poller.

use interlock::{Brand, Poller};

fn twice<B: Brand>(poller: Poller<B>) {
    let _ = poller;
}

fn main() {}
