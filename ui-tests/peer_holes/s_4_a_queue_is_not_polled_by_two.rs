//! Hole S-4: two pollers at once on one completion queue.
//! Error: E0596

use interlock::{Brand, Poller};

fn poll<B: Brand>(poller: &Poller<B>) {
    let _ = (poller.poll().is_ok(), poller.poll().is_ok());
}

fn main() {}
