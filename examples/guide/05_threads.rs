//! # 5. A worker thread each
//!
//! Eight threads, in pairs, send each other messages. Each owns everything that it uses. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --example guide_05_threads`.
use interlock::{Context, Init, Inline, Limits, Poller, ProtectionDomain, QueuePair};
use std::{thread, time::Duration};

interlock::domain! { struct Workers; }

const GAMES: usize = 4;
const ROUNDS: u32 = 500;
const WAIT: Duration = Duration::from_secs(60);

/// What one thread needs to play: a pair, and the poller of a completion queue of its own.
fn seat(domain: &ProtectionDomain<Workers>) -> anyhow::Result<(QueuePair<Workers, Init>, Poller<Workers>)> {
    let limits = Limits { inline_bytes: 4, ..Limits::default() };
    let (queue, poller) = domain.completion_queue(limits.completions())?;
    let mut pair = domain.reliable(&queue, &limits)?.into_init(&domain.context().active_port()?)?;
    for buffer in domain.buffers(2, 4)? {
        pair.post_receive(buffer)?; // two, because the other side may be one round ahead
    }
    Ok((pair, poller))
}

/// In each round both sides send, and then wait for the message of the other.
fn play(mut pair: QueuePair<Workers>, mut poller: Poller<Workers>) -> anyhow::Result<QueuePair<Workers>> {
    let (mut sent, mut received) = (0, 0);
    for round in 1..=ROUNDS {
        pair.post_send(Inline(b"ball")).map_err(|error| error.into_cause())?;
        while sent < round || received < round {
            if let Ok(message) = poller.wait(WAIT)?.check()?.into_received() {
                pair.post_receive(message)?;
                received += 1;
            } else {
                sent += 1;
            }
        }
    }
    Ok(pair)
}

fn main() -> anyhow::Result<()> {
    let domain = Context::open_default()?.named_domain(Workers)?;
    let mut threads = Vec::new();
    for _ in 0..GAMES {
        let ((left, left_poller), (right, right_poller)) = (seat(&domain)?, seat(&domain)?);
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (left, right) = (left.connect(&to_right)?, right.connect(&to_left)?);
        threads.push(thread::spawn(|| play(left, left_poller)));
        threads.push(thread::spawn(|| play(right, right_poller)));
    }

    // Each thread returns its pair, so the pair lives until all threads are done. Until then, it can acknowledge the
    // last message of the other side.
    let pairs: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<_, _>>()?;
    println!("{} threads played {GAMES} games of {ROUNDS} rounds", pairs.len());
    Ok(())
}
