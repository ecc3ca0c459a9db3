//! # 5. A worker thread each
//!
//! A thread that owns a queue pair *and* the poller of its completion queue shares nothing with the others: no lock, no
//! atomic, no cache line. So give each worker its own.
//!
//! ```sh
//! INTERLOCK_DEVICE=soft0 cargo run --example guide_05_threads
//! ```
//!
//! Posting and polling take `&mut`, so two threads cannot use one pair or one poller at a time; the compiler says so.
//! Pairs, pollers and buffers are `Send`: main makes and connects everything, then moves each worker's objects into its
//! thread. A thread that makes more objects gets a clone of the `ProtectionDomain`.
//!
//! Here two workers at a time play ping-pong. Each uses the same two buffers for the whole game: it posts the buffer of
//! a message as the next receive, and sends the next message from the buffer of the last.
//!
//! When one connection needs two threads, `split` takes the pair apart: a `SendHalf` for the thread that sends, and a
//! `ReceiveHalf` for the one that receives. With `reliable_on` the two halves complete on different queues, so that
//! each thread polls its own.
use interlock::{Buffer, Context, Limits, Poller, QueuePair};
use std::thread;
use std::time::{Duration, Instant};

interlock::domain! { struct Workers; }

const GAMES: usize = 4;
const ROUNDS: u32 = 500;
const WAIT: Duration = Duration::from_secs(5);

/// The objects that one thread owns.
struct Worker {
    pair: QueuePair<Workers>,
    poller: Poller<Workers>,
    ball: Option<Buffer<Workers>>,
    begins: bool,
}

impl Worker {
    fn play(mut self) -> anyhow::Result<Self> {
        let (mut sent, mut received) = (0, 0);
        while sent < ROUNDS || received < ROUNDS || self.ball.is_none() {
            // One side sends first. After that, each side sends when it has received.
            if sent < ROUNDS.min(received + u32::from(self.begins))
                && let Some(mut ball) = self.ball.take()
            {
                ball.write(&sent.to_be_bytes())?;
                self.pair.post_send(ball)?;
                sent += 1;
            }
            match self.poller.wait(WAIT)?.check()?.into_received() {
                Ok(message) => {
                    assert_eq!(message[..], received.to_be_bytes());
                    self.pair.post_receive(message)?;
                    received += 1;
                }
                Err(done) => self.ball = done.into_buffer(),
            }
        }
        Ok(self)
    }
}

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let (port, limits) = (context.active_port()?, Limits::default());
    let domain = context.named_domain(Workers)?;
    let mut workers = Vec::new();
    for _ in 0..GAMES {
        let mut seats = Vec::new();
        for _ in 0..2 {
            let (queue, poller) = domain.completion_queue(limits.completions())?;
            let mut pair = domain.reliable(&queue, &limits)?.into_init(&port)?;
            pair.post_receive(domain.buffer(4)?)?;
            seats.push((pair, poller));
        }
        let ends: Vec<_> = seats.iter().map(|(pair, _)| pair.endpoint()).collect();
        for ((pair, poller), (peer, begins)) in seats.into_iter().zip([(&ends[1], true), (&ends[0], false)]) {
            workers.push(Worker { pair: pair.connect(peer)?, poller, ball: Some(domain.buffer(4)?), begins });
        }
    }

    let start = Instant::now();
    let threads: Vec<_> = workers.into_iter().map(|worker| thread::spawn(|| worker.play())).collect();
    // Each worker returns its pair, so the pair lives until all workers are done. Until then, it can acknowledge the
    // last message of the other side.
    let workers: Vec<_> =
        threads.into_iter().map(|worker| worker.join().expect("no panic")).collect::<Result<_, _>>()?;
    println!("{} threads played {GAMES} games of {ROUNDS} rounds in {:.1?}", workers.len(), start.elapsed());
    Ok(())
}
