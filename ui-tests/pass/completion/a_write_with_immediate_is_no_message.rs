//! Rule C2: a failure has no received message.

use interlock::completion::Received;
use interlock::{Brand, Work};

fn read<B: Brand>(work: Work<B>) -> Option<Received<B>> {
    match work {
        Work::Received(received) => Some(received),
        _ => None,
    }
}

fn main() {}
