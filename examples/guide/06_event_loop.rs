//! # 6. Waiting in an event loop
//!
//! One loop waits for completions and for a socket. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --example guide_06_event_loop`.
use interlock::completion::{Armed, WakeFor};
use interlock::{Context, Limits, Poller};
use mio::net::UnixStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

interlock::domain! { struct Loop; }

const COMPLETIONS: Token = Token(0);
const SOCKET: Token = Token(1);

/// Handles all completions, and returns their number. The poller is armed afterwards.
fn take_completions(poller: &mut Poller<Loop>) -> anyhow::Result<u32> {
    let mut count = 0;
    while let Armed::Ready(completion) = poller.arm(WakeFor::Any)? {
        if let Ok(message) = completion.check()?.into_received() {
            println!("a message: {}", String::from_utf8_lossy(&message));
        }
        count += 1;
    }
    Ok(count)
}

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let (port, limits) = (context.active_port()?, Limits::default());
    let domain = context.named_domain(Loop)?;
    let (queue, mut poller) = domain.completion_queue(limits.completions())?;
    let mut pair = domain.reliable(&queue, &limits)?.into_init(&port)?;
    pair.post_receive(domain.buffer(64)?)?;
    let myself = pair.endpoint(); // a pair may be connected to itself
    let mut pair = pair.connect(&myself)?;

    let mut events = Poll::new()?;
    let readiness = poller.readiness()?;
    events.registry().register(&mut SourceFd(&readiness.as_raw_fd()), COMPLETIONS, Interest::READABLE)?;
    let (mut socket, mut other_end) = UnixStream::pair()?;
    events.registry().register(&mut socket, SOCKET, Interest::READABLE)?;
    other_end.write_all(b"send it")?;

    let mut ready = Events::with_capacity(8);
    let mut left = 2; // the send and the receive
    left -= take_completions(&mut poller)?;
    while left > 0 {
        events.poll(&mut ready, poller.next_timer())?;
        for event in &ready {
            if event.token() == SOCKET {
                let mut command = [0; 7];
                socket.read_exact(&mut command)?;
                println!("the socket says: {}", String::from_utf8_lossy(&command));
                let mut message = domain.buffer(64)?;
                message.write(b"from the event loop")?;
                pair.post_send(message)?;
            }
        }
        // Take completions after every `events.poll`, even if it returns no event. It also returns when the time of
        // `next_timer` is over, and then the device must be polled.
        left -= take_completions(&mut poller)?;
    }
    Ok(())
}
