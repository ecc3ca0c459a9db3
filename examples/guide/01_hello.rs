//! # 1. Hello on one machine
//!
//! Two queue pairs of one process are connected, and one sends a message to the other. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --example guide_01_hello`.
use interlock::{Context, Limits};
use std::time::Duration;

interlock::domain! { struct Hello; }

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let port = context.active_port()?;
    let domain = context.named_domain(Hello)?;
    let limits = Limits::default(); // 4 sends and 4 receives
    let (queue, mut poller) = domain.completion_queue(2 * limits.completions())?;

    let left = domain.reliable(&queue, &limits)?.into_init(&port)?;
    let mut right = domain.reliable(&queue, &limits)?.into_init(&port)?;
    // The device writes the message straight into this buffer, so it must have the buffer before the message arrives.
    right.post_receive(domain.buffer(64)?)?;
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (mut left, _right) = (left.connect(&to_right)?, right.connect(&to_left)?);

    let mut greeting = domain.buffer(64)?;
    greeting.write(b"hello")?;
    left.post_send(greeting)?; // moves the buffer: only the completion gives it back

    // Two requests complete: the send and the receive. `check` returns an error if the request failed.
    let mut free = Vec::new();
    for _ in 0..2 {
        match poller.wait(Duration::from_secs(5))?.check()?.into_received() {
            Ok(message) => println!("received on {}: {}", context.name(), String::from_utf8_lossy(&message)),
            Err(sent) => free.extend(sent.into_buffer()), // the buffer of the send, ready to be used again
        }
    }
    Ok(())
}
