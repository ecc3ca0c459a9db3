//! # 13. An async server
//!
//! A server sends each message back to the client that sent it. Each client has a task. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --features tokio --example guide_13_async_server`.
use anyhow::{Context as _, Result, ensure};
use interlock::aio::{self, End, SharedPoller, tcp};
use interlock::{Buffer, CompletionQueue, Context, Init, Limits, ProtectionDomain, QueuePair};
use std::{net::SocketAddr, time::Duration};
use tokio::task::JoinSet;

interlock::domain! { struct Echo; }

const CLIENTS: u32 = 8;
const REQUESTS: u32 = 100; // of each client
const WAIT: Duration = Duration::from_secs(30);

type Pair = QueuePair<Echo, Init>;

fn pair(domain: &ProtectionDomain<Echo>, queue: &CompletionQueue<Echo>) -> Result<Pair> {
    let mut pair = domain.reliable(queue, &Limits::default())?.into_init(&domain.context().active_port()?)?;
    pair.post_receive(domain.buffer(64)?)?;
    Ok(pair)
}

/// Answers one client until its connection ends, and returns why it has ended.
async fn answer(client: tcp::Arrival, poller: SharedPoller<Echo>, pair: Pair, mut spare: Buffer<Echo>) -> Result<End> {
    let mut client = client.read(WAIT).await?.accept(&poller, pair, b"", WAIT).await?;
    client.keep_alive(Some(Duration::from_secs(30))); // finds out if the client's machine fails
    while let Some(Ok(message)) = client.next().await {
        client.post_receive(spare)?; // before the answer, because the client may send again once it has the answer
        spare = client.send(message.into_buffer().context("no message")?)?.await?;
    }
    Ok(client.closed().await)
}

/// One client: sends its message again and again, and checks the answers.
async fn call(server: SocketAddr, poller: SharedPoller<Echo>, pair: Pair, mut message: Buffer<Echo>) -> Result<()> {
    let mut server = tcp::connect(&poller, server, pair, b"", WAIT).await?;
    for _ in 0..REQUESTS {
        message = server.send(message)?.await?;
        let answer = server.next().await.context("no receive")??.into_buffer().context("no message")?;
        ensure!(answer[..] == message[..], "the answer of another client");
        server.post_receive(answer)?;
    }
    Ok(()) // drops the connection without a close, as if the process had died
}

#[tokio::main]
async fn main() -> Result<()> {
    let domain = Context::open_default()?.named_domain(Echo)?;
    let (queue, poller) = domain.completion_queue(2 * CLIENTS * Limits::default().completions())?;
    let poller = SharedPoller::new(poller);
    aio::spawn(poller.driver().context("there is a driver")?)?;
    let listener = tcp::Listener::bind("127.0.0.1:0").await?;
    let server = listener.local_address()?;

    let mut callers = JoinSet::new();
    for client in 0..CLIENTS {
        let mut message = domain.buffer(64)?;
        message.write(format!("client {client}").as_bytes())?;
        callers.spawn(call(server, poller.clone(), pair(&domain, &queue)?, message));
    }
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = listener.accept().await?;
        clients.spawn(answer(client, poller.clone(), pair(&domain, &queue)?, domain.buffer(64)?));
    }
    while let Some(ended) = clients.join_next().await {
        match ended? {
            Ok(end) => println!("a client has gone: {end}"),
            Err(error) => println!("a client failed: {error:#}"),
        }
    }
    callers.join_all().await.into_iter().collect()
}
