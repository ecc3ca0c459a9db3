//! # 4. An RPC server with credits and many clients
//!
//! Clients send requests, each from a thread of its own, and one server thread answers them all.
//!
//! ```sh
//! INTERLOCK_DEVICE=soft0 cargo run --example guide_04_rpc
//! ```
//!
//! The question that every message protocol over RDMA must answer is: *who makes sure that a receive is posted?* A
//! message that finds none is retried for a while, and then breaks the connection. The answer here is *credits*:
//!
//! - The server has `CREDITS` receives posted for each client before the client is connected.
//! - A client begins with `CREDITS` credits. Each request takes one, so it never sends more than the server can
//!   receive.
//! - The server posts the receive again *before* it answers. So each answer gives one credit back, and credits need no
//!   messages of their own.
//! - The client has a receive posted for each answer that may come, which is one for each credit. Its list of expected
//!   answers counts the credits: it never has more than `CREDITS` entries.
//!
//! Messages are short, so they are sent `Inline`: their bytes are copied when they are posted. So the server can post
//! the buffer of a request as a receive again before it sends the answer. Longer answers need a buffer of their own.
//!
//! A send also needs a slot of the send queue until its completion is polled, and an answer may reach the client long
//! before that. So requests wait while `CREDITS` answers are in flight. The library would refuse a post beyond the
//! depth, as `PostError::QueueFull`.
//!
//! (The error of a post contains the inline bytes, which are borrowed. `into_cause` drops them, so that `?` can return
//! the error.)
//!
//! All pairs of the server complete on one queue, and each completion names its pair.
//!
//! The program also runs on devices whose completions come in any order. Therefore each answer contains its question
//! (in capitals), and the queues are twice as deep as the credits: a slot becomes free only when the requests before it
//! have completed too.
use anyhow::{Context as _, ensure};
use interlock::{
    Buffer, CompletionQueue, Context, Init, Inline, Limits, Poller, PostError, ProtectionDomain, QueuePair,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::{thread, time::Duration};

interlock::domain! { struct Rpc; }

const CLIENTS: u32 = 8;
const CREDITS: u32 = 4;
const REQUESTS: u32 = 100; // of each client
const COMPLETIONS: u32 = 2 * CLIENTS * REQUESTS; // one for each request, and one for each answer
const WAIT: Duration = Duration::from_secs(5);
const LIMITS: Limits = Limits { sends: 2 * CREDITS, receives: 2 * CREDITS, inline_bytes: 32, ..Limits::DEFAULT };

/// The clients by the number of their queue pair: the pair, and the requests that wait to be answered.
type Clients = HashMap<interlock::number::Qpn, (QueuePair<Rpc>, VecDeque<Buffer<Rpc>>)>;

fn serve(clients: &mut Clients, mut poller: Poller<Rpc>) -> anyhow::Result<()> {
    for _ in 0..COMPLETIONS {
        let success = poller.wait(WAIT)?.check()?;
        let (pair, waiting) = clients.get_mut(&success.queue_pair()).context("a completion of a stranger")?;
        waiting.extend(success.into_received().ok()); // a completion of a sent answer adds nothing
        while pair.sends_in_flight() < CREDITS {
            let Some(request) = waiting.pop_front() else { break };
            let answer = request.to_ascii_uppercase();
            pair.post_receive(request)?; // before the answer, which gives the credit back
            pair.post_send(Inline(&answer)).map_err(PostError::into_cause)?;
        }
    }
    Ok(())
}

fn ask(mut pair: QueuePair<Rpc>, mut poller: Poller<Rpc>, client: u32) -> anyhow::Result<QueuePair<Rpc>> {
    let (mut asked, mut expected) = (0, HashSet::new());
    while asked < REQUESTS || !expected.is_empty() {
        while asked < REQUESTS && expected.len() < CREDITS as usize && pair.sends_in_flight() < CREDITS {
            let question = format!("question {asked} of client {client}").into_bytes();
            pair.post_send(Inline(&question)).map_err(PostError::into_cause)?;
            expected.insert(question.to_ascii_uppercase());
            asked += 1;
        }
        if let Ok(answer) = poller.wait(WAIT)?.check()?.into_received() {
            ensure!(expected.remove(&answer[..]), "a wrong answer");
            pair.post_receive(answer)?;
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
    for client in 0..CLIENTS {
        let (own_queue, own_poller) = domain.completion_queue(LIMITS.completions())?;
        let (here, there) = (prepare(&domain, &queue)?, prepare(&domain, &own_queue)?);
        let (to_here, to_there) = (here.endpoint(), there.endpoint());
        of_server.insert(here.number(), (here.connect(&to_there)?, VecDeque::new()));
        let there = there.connect(&to_here)?;
        clients.push(thread::spawn(move || ask(there, own_poller, client)));
    }
    // The pairs of both sides live until all threads are done, because a destroyed pair acknowledges no message.
    serve(&mut of_server, poller)?;
    for client in clients {
        drop(client.join().expect("no panic")?);
    }
    println!("{CLIENTS} clients had {REQUESTS} answers each, with {CREDITS} requests under way at a time");
    Ok(())
}
