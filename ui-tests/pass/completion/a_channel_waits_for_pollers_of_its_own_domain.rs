//! Rule C5: a completion channel waits for pollers of its own domain.

use interlock::Poller;
use interlock::completion::CompletionChannel;
use std::time::Duration;

interlock::domain! { struct Storage; struct Scratch; }

fn wait(channel: &mut CompletionChannel<Storage>, own: &mut [Poller<Storage>], _other: &mut [Poller<Scratch>]) {
    let _ = channel.wait_any(own, Duration::ZERO);
}

fn main() {}
