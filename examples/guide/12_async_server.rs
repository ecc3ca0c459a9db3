//! # 12. An async server with many clients
//!
//! An echo server: each message goes back to the client that sent it. All clients share one queue of receives.
//!
//! ```sh
//! INTERLOCK_DEVICE=soft0 cargo run --features tokio --example guide_12_async_server
//! ```
//!
//! The program is the server and all its clients, one of which dies. The functions `serve` and `answer` are a server
//! also if the clients are on other machines: chapter 11 shows how to pass its address.
//!
//! **One task receives, and one task for each client answers.** The task that receives owns the shared receive queue,
//! so nothing needs a lock. A receive names the pair that took the message, and the message goes to the task of that
//! pair. A message may come before `accept` has returned, so the pair is in the table before that.
//!
//! **How many**, for `CLIENTS` clients with at most `CREDITS` requests under way each (chapter 4 is about credits):
//!
//! | | how many | so that |
//! |---|---|---|
//! | receives | `CLIENTS * CREDITS` | every message that may come finds one |
//! | sends of a pair | `CREDITS` | each request under way can be answered |
//! | completions | receives, and sends of all pairs | the queue has room for all: each request may make a completion |
//! | buffers | twice the receives | each receive has one, and each message that is being answered |
//!
//! The library refuses a pair for which the completion queue has no room, so a client too many is rejected. It cannot
//! stop a client that sends more than `CREDITS` requests, which takes the receives of others. A message that finds no
//! receive is sent again after a while, which is slow. If few clients are busy at a time, fewer receives are enough;
//! `arm_limit` gives an event when they become scarce. With fewer buffers, `take` waits until one comes home.
//!
//! **Refill, then answer.** The answer gives the client its credit back, so the next receive must be posted before. It
//! has a fresh buffer of the pool. The buffer of the message becomes the answer, and goes home once that is sent.
//!
//! **A client that dies.** If its process ends, its system tells the server. If its machine fails, nobody does, so
//! `keep_alive` asks every few seconds. Either way `closed` is ready, and `close` destroys the pair: buffers go home,
//! the completion queue has room for another client, and the others notice nothing. A receive that was filled with a
//! part of a long message (more than one packet) may stay taken until the shared queue is destroyed.
//!
//! **Shutdown**, in this order: take no more clients; let each task answer what it has, and close its pair; then drop
//! the queues. When every buffer is home, the device uses none.
use anyhow::{Context as _, Result, ensure};
use interlock::aio::{self, RequestError, SharedPoller, cm::Listener, cm::Request, cm::SharedChannel};
use interlock::cm::{AcceptData, ConnectData};
use interlock::memory::{Growth, PoolOptions, SizeClass};
use interlock::transport::{OnShared, ReliableConnection};
use interlock::{Context, Init, Inline, Limits, PostError, ProtectionDomain, QueuePair, Success, shared::SharedLimits};
use std::net::{Ipv6Addr, SocketAddr};
use std::{collections::HashMap, pin::pin, time::Duration};
use tokio::{sync::mpsc, task::JoinSet};

interlock::domain! { struct Echo; }

const CLIENTS: u32 = 8;
const CREDITS: u32 = 4;
const REQUESTS: u32 = 100; // of each client
const RECEIVES: u32 = CLIENTS * CREDITS;
const BUFFERS: u32 = 2 * RECEIVES;
const LIMITS: Limits = Limits { sends: CREDITS, receives: CREDITS, inline_bytes: 8, ..Limits::DEFAULT };
const LEN_BYTES: usize = 32;
const WAIT: Duration = Duration::from_secs(30);

type Domain = ProtectionDomain<Echo>;
type Pair = QueuePair<Echo, Init, OnShared<ReliableConnection>>;
type Inbox = mpsc::UnboundedReceiver<Success<Echo>>;

async fn serve(domain: &Domain, mut listener: Listener, stop: impl Future<Output = Result<()>>) -> Result<()> {
    let (queue, poller) = domain.completion_queue(RECEIVES + CLIENTS * LIMITS.sends)?;
    let poller = SharedPoller::new(poller);
    aio::spawn(poller.driver().context("there is a driver")?)?;
    let classes = vec![SizeClass { len_bytes: LEN_BYTES, count: BUFFERS }];
    let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() })?;
    let mut stock = domain.shared_receive_queue(&SharedLimits { receives: RECEIVES, grows_to: 0 })?;
    let mut receives = poller.receives_of(&stock)?;
    for _ in 0..RECEIVES {
        stock.post_receive(pool.try_take(LEN_BYTES)?)?;
    }
    let (mut inboxes, mut clients, mut stop) = (HashMap::new(), JoinSet::new(), pin!(stop));
    loop {
        tokio::select! {
            request = listener.accept() => {
                let request = request?;
                let Ok(pair) = stock.reliable(&queue, &LIMITS) else { continue }; // full: the drop rejects the request
                let pair = pair.into_init(&domain.context().active_port()?)?;
                let (inbox, messages) = mpsc::unbounded_channel();
                inboxes.insert(pair.number(), inbox);
                clients.spawn(answer(request, poller.clone(), pair, messages));
            }
            received = receives.next() => {
                if let Err(RequestError::Queue(error)) = received {
                    return Err(error.into());
                }
                stock.post_receive(pool.take(LEN_BYTES).await?)?; // replaces the completed receive
                if let Ok(message) = received && let Some(inbox) = inboxes.get(&message.queue_pair()) {
                    drop(inbox.send(message)); // fails if the client's task has ended
                }
            }
            Some(ended) = clients.join_next() => {
                ended?.unwrap_or_else(|error| println!("a client failed: {error:#}"));
                inboxes.retain(|_, inbox| !inbox.is_closed());
            }
            result = &mut stop => break result?,
        }
    }
    drop((listener, inboxes));
    clients.join_all().await;
    drop((receives, stock, queue, poller));
    let mut home = Vec::new();
    for _ in 0..BUFFERS {
        home.push(pool.take(LEN_BYTES).await?);
    }
    println!("the server has ended, and {} of {BUFFERS} buffers are home", home.len());
    Ok(())
}

async fn answer(request: Request, poller: SharedPoller<Echo>, pair: Pair, mut inbox: Inbox) -> Result<()> {
    let client = request.accept(&poller, pair, &AcceptData::none(), WAIT).await;
    let mut client = client.map_err(|failed| failed.into_cause())?;
    client.keep_alive(Some(Duration::from_secs(5)));
    loop {
        let message = tokio::select! {
            message = inbox.recv() => message,
            end = client.closed() => break println!("a client has gone: {end}"),
        };
        let Some(message) = message else { break }; // the server is ending
        let message = message.into_received().ok().context("no message")?;
        let answered = client.send(message).map_err(PostError::into_cause)?;
        tokio::select! {
            answered = answered => drop(answered?), // the drop returns the buffer to the pool
            end = client.closed() => break println!("a client has gone: {end}"),
        }
    }
    client.close().within(WAIT).await;
    Ok(())
}

async fn call(domain: Domain, channel: SharedChannel, server: SocketAddr, client: u8) -> Result<()> {
    let (queue, poller) = domain.completion_queue(LIMITS.completions())?;
    let poller = SharedPoller::new(poller);
    aio::spawn(poller.driver().context("there is a driver")?)?;
    let mut pair = domain.reliable(&queue, &LIMITS)?.into_init(&domain.context().active_port()?)?;
    for buffer in domain.buffers(CREDITS as usize, LEN_BYTES)? {
        pair.post_receive(buffer)?;
    }
    let server = channel.connect(&poller, server, pair, &ConnectData::none(), WAIT).await;
    let mut server = server.map_err(|failed| failed.into_cause())?;
    for round in 0..REQUESTS + CREDITS {
        if round >= CREDITS {
            let answer = server.next().await.context("no receive")??.into_received().ok().context("no message")?;
            ensure!(answer[..] == [client], "the answer of another client");
            server.post(answer)?;
        }
        if round < REQUESTS {
            server.send(Inline(&[client])).map_err(PostError::into_cause)?.await?;
        }
        if client == 3 && round == REQUESTS / 2 {
            return Ok(()); // as if its process were killed: requests are in flight, and nothing is closed
        }
    }
    server.close().within(WAIT).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let context = Context::open_default()?;
    let domain = context.named_domain(Echo)?;
    let channel = SharedChannel::open(&context)?;
    aio::cm::spawn(channel.driver().context("there is a driver")?)?;
    let own = context.active_port()?.gids().iter().find_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped());
    let listener = channel.listen((own.context("no address of IPv4")?, 0).into())?;
    let at = listener.local_address().context("no address")?;
    let clients = (0..CLIENTS as u8).map(|client| call(domain.clone(), channel.clone(), at, client));
    let clients = clients.collect::<JoinSet<_>>();
    serve(&domain, listener, async { clients.join_all().await.into_iter().collect() }).await
}
