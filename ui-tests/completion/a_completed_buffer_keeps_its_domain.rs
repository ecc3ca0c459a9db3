//! Rule C3: a completion comes from the poller, once.
//! Error: E0277

use interlock::{Completion, QueuePair};

interlock::domain! { struct Storage; struct Scratch; }

fn relay(from: Completion<Scratch>, pair: &mut QueuePair<Storage>) {
    if let Some(buffer) = from.check().ok().and_then(|success| success.into_received().ok()) {
        let _ = pair.post_send(buffer);
    }
}

fn main() {}
