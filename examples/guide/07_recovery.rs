//! # 7. Recovery after a failure
//!
//! One side sends a message that is longer than the receive of the other. Then both recover. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --example guide_07_recovery`.
use interlock::{Context, Failure, Init, Limits, Poller, Port, ProtectionDomain, QueuePair, Success};
use std::time::Duration;

interlock::domain! { struct Phoenix; }

const WAIT: Duration = Duration::from_secs(60);

fn end(domain: &ProtectionDomain<Phoenix>, port: &Port) -> anyhow::Result<(QueuePair<Phoenix, Init>, Poller<Phoenix>)> {
    let (queue, poller) = domain.completion_queue(Limits::default().completions())?;
    Ok((domain.reliable(&queue, &Limits::default())?.into_init(port)?, poller))
}

/// From a broken connection to Init. The buffers of all requests that were in flight come back.
fn recover(
    pair: QueuePair<Phoenix>,
    mut poller: Poller<Phoenix>,
    domain: &ProtectionDomain<Phoenix>,
    port: &Port,
) -> anyhow::Result<(QueuePair<Phoenix, Init>, Poller<Phoenix>)> {
    let mut pair = pair.into_error()?;
    let mut buffers = Vec::new();
    pair.drain(&mut poller, WAIT, |completion| {
        buffers.extend(completion.check().map_or_else(Failure::into_buffer, Success::into_buffer));
    })?;
    println!("recovered; buffers that have come back: {}", buffers.len());
    // With some providers a pair is used once. There, a new pair takes its place.
    if !domain.context().promises().pairs_can_be_reset() {
        return end(domain, port);
    }
    Ok((pair.into_reset()?.into_init(port)?, poller))
}

fn main() -> anyhow::Result<()> {
    let domain = Context::open_default()?.named_domain(Phoenix)?;
    let port = domain.context().active_port()?;
    let (mut left, mut left_poller) = end(&domain, &port)?;
    let (mut right, mut right_poller) = end(&domain, &port)?;
    for room in [8, 64] {
        // Each new connection needs new receives, and the two sides must exchange their endpoints again. A real program
        // sends the endpoints over a socket.
        left.post_receive(domain.buffer(room)?)?;
        right.post_receive(domain.buffer(room)?)?;
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (mut sender, receiver) = (left.connect(&to_right)?, right.connect(&to_left)?);

        let mut message = domain.buffer(64)?;
        message.write(b"a message of 23 bytes..")?;
        sender.post_send(message)?;
        let Err(failure) = left_poller.wait(WAIT)?.check() else {
            println!("receives of {room} bytes: it has arrived");
            break;
        };
        println!("receives of {room} bytes: {failure}");
        (left, left_poller) = recover(sender, left_poller, &domain, &port)?;
        (right, right_poller) = recover(receiver, right_poller, &domain, &port)?;
    }
    Ok(())
}
