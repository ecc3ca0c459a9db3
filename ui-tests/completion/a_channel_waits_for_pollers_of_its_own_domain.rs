//! Rule C5: a completion channel waits for pollers of its own domain.
//! Error: E0308

use interlock::Poller;
use interlock::completion::CompletionChannel;
use std::time::Duration;

interlock::domain! { struct Storage; struct Scratch; }

fn wait(channel: &mut CompletionChannel<Storage>, _own: &mut [Poller<Storage>], other: &mut [Poller<Scratch>]) {
    let _ = channel.wait_any(other, Duration::ZERO);
}

fn main() {}
