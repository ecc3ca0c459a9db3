//! # 14. Many clients on one queue of receives
//!
//! All clients of a server share its receives and its buffers. docs/guide.md explains it.
//! Run it with `INTERLOCK_DEVICE=soft0 cargo run --features tokio --example guide_14_async_many_clients`.
use anyhow::{Context as _, Result, ensure};
use interlock::aio::{self, Connection, SharedPoller};
use interlock::memory::{Growth, PoolOptions, SizeClass};
use interlock::{Buffer, Context, Limits, shared::SharedLimits};
use std::{collections::HashMap, time::Duration};
use tokio::task::JoinSet;

interlock::domain! { struct Echo; }

const CLIENTS: u32 = 8;
const REQUESTS: u32 = 100; // of each client, one at a time
const RECEIVES: u32 = CLIENTS; // each request that may come finds one
const BUFFERS: u32 = 2 * RECEIVES; // one for each receive, and one for each request that is being answered

/// One client: sends its message again and again, and checks the answers.
async fn call(mut server: Connection<Echo>, mut message: Buffer<Echo>) -> Result<()> {
    for _ in 0..REQUESTS {
        message = server.send(message)?.await?;
        let answer = server.next().await.context("no receive")??.into_buffer().context("no message")?;
        ensure!(answer[..] == message[..], "the answer of another client");
        server.post_receive(answer)?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let domain = Context::open_default()?.named_domain(Echo)?;
    let (port, limits) = (domain.context().active_port()?, Limits::default());
    let of_clients = CLIENTS * limits.completions(); // the other ends, which are in this process, too
    let (queue, poller) = domain.completion_queue(RECEIVES + CLIENTS * limits.sends + of_clients)?;
    let poller = SharedPoller::new(poller);
    aio::spawn(poller.driver().context("there is a driver")?)?;

    let classes = vec![SizeClass { len_bytes: 64, count: BUFFERS }];
    let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..PoolOptions::default() })?;
    let mut stock = domain.shared_receive_queue(&SharedLimits { receives: RECEIVES, grows_to: 0 })?;
    let mut receives = poller.receives_of(&stock)?;
    for _ in 0..RECEIVES {
        stock.post_receive(pool.try_take(64)?)?;
    }

    let (mut clients, mut callers) = (HashMap::new(), JoinSet::new());
    for client in 0..CLIENTS {
        let here = stock.reliable(&queue, &limits)?.into_init(&port)?;
        let mut there = domain.reliable(&queue, &limits)?.into_init(&port)?;
        there.post_receive(domain.buffer(64)?)?;
        let (to_here, to_there) = (here.endpoint(), there.endpoint());
        clients.insert(here.number(), Connection::new(&poller, here.connect(&to_there)?)?);
        let mut message = domain.buffer(64)?;
        message.write(format!("client {client}").as_bytes())?;
        callers.spawn(call(Connection::new(&poller, there.connect(&to_here)?)?, message));
    }

    for _ in 0..CLIENTS * REQUESTS {
        let request = receives.next().await?;
        stock.post_receive(pool.take(64).await?)?; // before the answer, because the client may send again after it
        let client = clients.get_mut(&request.queue_pair()).context("a request of a stranger")?;
        client.sender.room().await?;
        client.send(request.into_buffer().context("no message")?)?.abandon(); // the buffer goes home once it is sent
    }
    callers.join_all().await.into_iter().collect::<Result<()>>()?;

    for client in clients.into_values() {
        client.close().within(Duration::from_secs(5)).await;
    }
    drop((receives, stock, queue, poller)); // gives back the receives that are still posted
    let mut home = Vec::new();
    for _ in 0..BUFFERS {
        home.push(pool.take(64).await?);
    }
    println!("the server has ended, and {} of {BUFFERS} buffers are home", home.len());
    Ok(())
}
