//! Rule C2: a failure has no received message.
//! Error: E0308

use interlock::{Brand, Work};
use interlock::completion::Received;

fn read<B: Brand>(work: Work<B>) -> Option<Received<B>> {
    match work {
        Work::WrittenWithImmediate(written) => Some(written),
        _ => None,
    }
}

fn main() {}
