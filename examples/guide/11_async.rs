//! # 11. Async
//!
//! Tasks of a tokio runtime connect by address, as in chapter 2, and await what they post.
//!
//! ```sh
//! guide_11_async server 192.0.2.1          # on one machine: its address on the RDMA network
//! guide_11_async 192.0.2.1                 # on the other
//! INTERLOCK_DEVICE=soft0 guide_11_async    # both ends here, in one process
//! ```
//!
//! (`guide_11_async` is `cargo run --features tokio --example guide_11_async --`.)
//!
//! - A post stays a plain call. It returns a future, which holds no memory: a `select!` may drop it.
//! - `SharedPoller` shares completions, `SharedChannel` events of rdma_cm. Each has a driver, which sleeps for all.
//! - `closed` says why a connection ended. `close` gives every buffer back.
use anyhow::Context as _;
use interlock::aio::{self, SharedPoller, cm::SharedChannel};
use interlock::cm::{AcceptData, ConnectData};
use interlock::{Context, Init, Limits, ProtectionDomain, QueuePair};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::{env, time::Duration};

interlock::domain! { struct Hello; }

const WAIT: Duration = Duration::from_secs(60);

/// A pair with a receive, and what tasks need to connect it.
fn side(domain: &ProtectionDomain<Hello>) -> anyhow::Result<(QueuePair<Hello, Init>, SharedPoller<Hello>)> {
    let (queue, poller) = domain.completion_queue(Limits::default().completions())?;
    let mut pair = domain.reliable(&queue, &Limits::default())?.into_init(&domain.context().active_port()?)?;
    pair.post_receive(domain.buffer(64)?)?;
    let poller = SharedPoller::new(poller);
    aio::spawn(poller.driver().context("there is a driver")?)?;
    Ok((pair, poller))
}

async fn serve(domain: &ProtectionDomain<Hello>, mut listener: aio::cm::Listener) -> anyhow::Result<()> {
    let (pair, poller) = side(domain)?;
    let client = listener.accept().await?.accept(&poller, pair, &AcceptData::none(), WAIT).await;
    let mut client = client.map_err(|failed| failed.into_cause())?;
    let heard = client.next().await.context("no receive")??.into_buffer().context("no message")?;
    println!("the server heard: {}", String::from_utf8_lossy(&heard));
    client.send(heard)?.await?;
    println!("the end: {}", client.closed().await);
    Ok(())
}

async fn call(domain: &ProtectionDomain<Hello>, channel: &SharedChannel, server: SocketAddr) -> anyhow::Result<()> {
    let (pair, poller) = side(domain)?;
    let server = channel.connect(&poller, server, pair, &ConnectData::none(), WAIT).await;
    let mut server = server.map_err(|failed| failed.into_cause())?;
    let mut greeting = domain.buffer(64)?;
    greeting.write(b"hello by a task")?;
    server.send(greeting)?.await?;
    let answer = server.next().await.context("no receive")??.into_buffer().context("no message")?;
    println!("the answer: {}", String::from_utf8_lossy(&answer));
    server.close().within(WAIT).await;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let domain = context.named_domain(Hello)?;
    let channel = SharedChannel::open(&context)?;
    aio::cm::spawn(channel.driver().context("there is a driver")?)?;
    let port = context.active_port()?;
    let own = port.gids().iter().find_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped());
    let at = |text: &str| anyhow::Ok(SocketAddr::new(text.parse::<IpAddr>()?, 18515));
    match (env::args().nth(1).as_deref(), env::args().nth(2).as_deref()) {
        (Some("server"), own) => serve(&domain, channel.listen(at(own.unwrap_or("0.0.0.0"))?)?).await,
        (Some(server), _) => call(&domain, &channel, at(server)?).await,
        (None, _) => {
            let listener = channel.listen((own.context("no address of IPv4")?, 0).into())?;
            let at = listener.local_address().context("no address")?;
            tokio::try_join!(serve(&domain, listener), call(&domain, &channel, at)).map(|_| ())
        }
    }
}
