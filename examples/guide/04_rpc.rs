//! # 4. An RPC server with credits and many clients
//!
//! Clients send requests, and one server thread answers them all.
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
//! - The server posts another receive *before* it answers. So each answer gives one credit back, and no message of its
//!   own is needed for that.
//! - The client has a receive posted for each answer that may come, which is one for each credit.
//!
//! To post a receive before it answers, the server needs a spare buffer. It has `CREDITS` of them for each client. A
//! spare buffer comes back when an answer has been sent; until then requests wait. So no side ever has more than
//! `CREDITS` requests of a kind in flight. The library checks that too: a post beyond the depth is refused as
//! `PostError::QueueFull`, with the buffer in the error.
//!
//! All pairs of the server complete on one queue, and each completion names its pair. The answer goes out in the buffer
//! in which the request came in, so nothing is copied or allocated in the loop.
//!
//! The program also runs on devices whose completions come in any order. Therefore an answer repeats its question, and
//! the queues are twice as deep as the credits: a slot is free again once the requests before it have completed too.
use anyhow::{Context as _, ensure};
use interlock::number::Qpn;
use interlock::{Buffer, Context, Init, Limits, Poller, ProtectionDomain, QueuePair, Work};
use std::collections::{HashMap, VecDeque};
use std::{thread, time::Duration};

interlock::domain! { struct Rpc; }

const CLIENTS: u32 = 8;
const CREDITS: usize = 4;
const REQUESTS: u64 = 100; // of each client
const WAIT: Duration = Duration::from_secs(5);

/// A client, as the server sees it.
struct Client {
    pair: QueuePair<Rpc>,
    waiting: VecDeque<Buffer<Rpc>>, // requests; together with the posted receives as many as CREDITS
    spare: Vec<Buffer<Rpc>>,        // together with the answers in flight as many as CREDITS
}

impl Client {
    fn answer(&mut self) -> anyhow::Result<()> {
        while !self.waiting.is_empty()
            && let Some(spare) = self.spare.pop()
            && let Some(mut request) = self.waiting.pop_front()
        {
            self.pair.post_receive(spare)?; // the credit
            let number = u64::from_be_bytes(request[..].try_into()?);
            request.set_len(16)?;
            request[8..].copy_from_slice(&number.pow(2).to_be_bytes());
            self.pair.post_send(request)?;
        }
        Ok(())
    }
}

fn serve(mut clients: HashMap<Qpn, Client>, mut poller: Poller<Rpc>) -> anyhow::Result<HashMap<Qpn, Client>> {
    let mut answered = 0;
    while answered < u64::from(CLIENTS) * REQUESTS {
        let success = poller.wait(WAIT)?.check()?;
        let client = clients.get_mut(&success.queue_pair()).context("a completion of a stranger")?;
        match success.work() {
            Work::Received(request) => client.waiting.push_back(request.buffer),
            sent => {
                client.spare.extend(sent.into_buffer());
                answered += 1;
            }
        }
        client.answer()?;
    }
    Ok(clients)
}

/// Asks for the squares of `first` and the numbers after it.
fn ask(
    mut pair: QueuePair<Rpc>,
    mut poller: Poller<Rpc>,
    mut idle: Vec<Buffer<Rpc>>,
    first: u64,
) -> anyhow::Result<QueuePair<Rpc>> {
    let (mut credits, mut asked, mut heard) = (CREDITS, 0, 0);
    while heard < REQUESTS {
        while asked < REQUESTS
            && credits > 0
            && let Some(mut request) = idle.pop()
        {
            request.write(&(first + asked).to_be_bytes())?;
            pair.post_send(request)?;
            (asked, credits) = (asked + 1, credits - 1);
        }
        match poller.wait(WAIT)?.check()?.into_received() {
            Ok(answer) => {
                let [question, square] =
                    [&answer[..8], &answer[8..]].map(|bytes| bytes.try_into().map(u64::from_be_bytes));
                ensure!(square? == question?.pow(2), "a wrong answer");
                pair.post_receive(answer)?;
                (heard, credits) = (heard + 1, credits + 1);
            }
            Err(sent) => idle.extend(sent.into_buffer()),
        }
    }
    Ok(pair)
}

/// Posts a receive for each credit.
fn receives(mut pair: QueuePair<Rpc, Init>, domain: &ProtectionDomain<Rpc>) -> anyhow::Result<QueuePair<Rpc, Init>> {
    for buffer in domain.buffers(CREDITS, 16)? {
        pair.post_receive(buffer)?;
    }
    Ok(pair)
}

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let port = context.active_port()?;
    let domain = context.named_domain(Rpc)?;
    let limits = Limits { sends: 2 * CREDITS as u32, receives: 2 * CREDITS as u32, ..Limits::default() };
    let (queue, poller) = domain.completion_queue(CLIENTS * limits.completions())?;

    let (mut of_server, mut of_clients) = (HashMap::new(), Vec::new());
    for _ in 0..CLIENTS {
        let (own_queue, own_poller) = domain.completion_queue(limits.completions())?;
        let here = receives(domain.reliable(&queue, &limits)?.into_init(&port)?, &domain)?;
        let there = receives(domain.reliable(&own_queue, &limits)?.into_init(&port)?, &domain)?;
        let (to_here, to_there) = (here.endpoint(), there.endpoint());
        let client =
            Client { pair: here.connect(&to_there)?, waiting: VecDeque::new(), spare: domain.buffers(CREDITS, 16)? };
        of_server.insert(client.pair.number(), client);
        of_clients.push((there.connect(&to_here)?, own_poller, domain.buffers(CREDITS, 16)?));
    }

    thread::scope(|scope| {
        let server = scope.spawn(|| serve(of_server, poller));
        let clients: Vec<_> = (0..)
            .zip(of_clients)
            .map(|(client, (pair, poller, idle))| scope.spawn(move || ask(pair, poller, idle, client * 1000)))
            .collect();
        // The pairs stay until both sides are done, because a pair that is gone acknowledges nothing.
        let _pairs: Vec<_> =
            clients.into_iter().map(|client| client.join().expect("no panic")).collect::<Result<_, _>>()?;
        server.join().expect("no panic")?;
        println!("{CLIENTS} clients had {REQUESTS} answers each, with {CREDITS} requests under way at a time");
        Ok(())
    })
}
