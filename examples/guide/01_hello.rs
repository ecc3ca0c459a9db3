//! # 1. Hello on one machine
//!
//! Two *queue pairs* of one process are connected to each other, and one sends a message to the other. No second
//! machine and no socket are needed. Without RDMA hardware, run it on the simulated device `soft0`:
//!
//! ```sh
//! INTERLOCK_DEVICE=soft0 cargo run --example guide_01_hello
//! ```
//!
//! The objects, in the order in which the program makes them:
//!
//! - A `Context` is an open device. `open_default` takes the RDMA device of the machine, or the one that
//!   `INTERLOCK_DEVICE` names. Without either, its error says what to check.
//! - A *protection domain* holds everything that may be used together. The type `Hello` is its name. The compiler
//!   refuses memory of another domain: ``expected `Buffer<Hello>` ``.
//! - A *completion queue* receives an entry for each finished request. One `Poller` takes them out. Each pair reserves
//!   as many entries of the queue as it can have requests in flight, so the queue cannot overflow.
//! - A *queue pair* is one end of a connection: a queue of sends and a queue of receives. Its state is in its type.
//!   `into_init` and `connect` consume the pair and return it in the next state. A send before `connect` does not
//!   compile.
//!
//! A receive must be posted before the message arrives, because the device writes the message straight into that
//! buffer. Posting moves the buffer into the pair. While the device may use it, the program has no handle to it. The
//! buffer comes back with the completion, so each completion must be polled, even that of a send.
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
    right.post_receive(domain.buffer(64)?)?;
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (mut left, _right) = (left.connect(&to_right)?, right.connect(&to_left)?);

    let mut greeting = domain.buffer(64)?;
    greeting.write(b"hello")?;
    left.post_send(greeting)?;

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
