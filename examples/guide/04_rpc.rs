//! # 4. An RPC server with credits and many clients
//!
//! Clients send requests, each from a thread of its own, and one thread answers them all. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --example guide_04_rpc`.
use anyhow::Context as _;
use interlock::{Buffer, CompletionQueue, Context, Init, Inline, Limits, Poller, ProtectionDomain, QueuePair};
use std::collections::{HashMap, VecDeque};
use std::{thread, time::Duration};

interlock::domain! { struct Rpc; }

const CLIENTS: u32 = 8;
const CREDITS: u32 = 4;
const REQUESTS: u32 = 100; // of each client
const WAIT: Duration = Duration::from_secs(60);
const LIMITS: Limits = Limits { sends: 2 * CREDITS, receives: 2 * CREDITS, inline_bytes: 32, ..Limits::DEFAULT };

/// The clients by the number of their queue pair: the pair, and the requests that wait to be answered.
type Clients = HashMap<interlock::number::Qpn, (QueuePair<Rpc>, VecDeque<Buffer<Rpc>>)>;

fn serve(clients: &mut Clients, mut poller: Poller<Rpc>) -> anyhow::Result<()> {
    for _ in 0..2 * CLIENTS * REQUESTS {
        let success = poller.wait(WAIT)?.check()?;
        let (pair, waiting) = clients.get_mut(&success.queue_pair()).context("a completion of a stranger")?;
        waiting.extend(success.into_received().ok()); // a completion of a sent answer adds nothing
        while pair.sends_in_flight() < CREDITS {
            let Some(request) = waiting.pop_front() else { break };
            let answer = request.to_ascii_uppercase();
            pair.post_receive(request)?; // before the answer, which gives the credit back
            pair.post_send(Inline(&answer)).map_err(|error| error.into_cause())?;
        }
    }
    Ok(())
}

fn ask(mut pair: QueuePair<Rpc>, mut poller: Poller<Rpc>) -> anyhow::Result<QueuePair<Rpc>> {
    let (mut left, mut credits) = (REQUESTS, CREDITS);
    while left > 0 || credits < CREDITS {
        while left > 0 && credits > 0 && pair.sends_in_flight() < CREDITS {
            pair.post_send(Inline(b"a question")).map_err(|error| error.into_cause())?;
            left -= 1;
            credits -= 1;
        }
        if let Ok(answer) = poller.wait(WAIT)?.check()?.into_received() {
            pair.post_receive(answer)?;
            credits += 1;
        }
    }
    Ok(pair)
}

/// A pair in Init, with a receive for each credit.
fn prepare(domain: &ProtectionDomain<Rpc>, queue: &CompletionQueue<Rpc>) -> anyhow::Result<QueuePair<Rpc, Init>> {
    let mut pair = domain.reliable(queue, &LIMITS)?.into_init(&domain.context().active_port()?)?;
    for buffer in domain.buffers(CREDITS as usize, 32)? {
        pair.post_receive(buffer)?;
    }
    Ok(pair)
}

fn main() -> anyhow::Result<()> {
    let domain = Context::open_default()?.named_domain(Rpc)?;
    let (queue, poller) = domain.completion_queue(CLIENTS * LIMITS.completions())?;
    let (mut of_server, mut clients) = (HashMap::new(), Vec::new());
    for _ in 0..CLIENTS {
        let (own_queue, own_poller) = domain.completion_queue(LIMITS.completions())?;
        let (here, there) = (prepare(&domain, &queue)?, prepare(&domain, &own_queue)?);
        let (to_here, to_there) = (here.endpoint(), there.endpoint());
        of_server.insert(here.number(), (here.connect(&to_there)?, VecDeque::new()));
        let there = there.connect(&to_here)?;
        clients.push(thread::spawn(|| ask(there, own_poller)));
    }
    serve(&mut of_server, poller)?;
    for client in clients {
        drop(client.join().expect("no panic")?); // only after `serve`: a destroyed pair acknowledges no answers
    }
    println!("{CLIENTS} clients had {REQUESTS} answers each, with {CREDITS} requests under way at a time");
    Ok(())
}
