//! # 12. Async
//!
//! Tasks of a tokio runtime connect by address and await what they post. docs/guide.md explains it.
//!
//! ```sh
//! guide_12_async server 192.0.2.1          # on one machine: its address on the RDMA network
//! guide_12_async 192.0.2.1                 # on the other
//! INTERLOCK_DEVICE=soft0 guide_12_async    # both ends here, in one process
//! ```
//!
//! (`guide_12_async` is `cargo run --features tokio --example guide_12_async --`.)
use anyhow::Context as _;
use interlock::aio::{self, SharedPoller, cm::SharedChannel};
use interlock::cm::{AcceptData, ConnectData};
use interlock::{Context, Init, Limits, ProtectionDomain, QueuePair};
use std::net::{IpAddr, SocketAddr};
use std::{env, time::Duration};

interlock::domain! { struct Hello; }

const PORT: u16 = 18515;
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
    let mut client = listener.accept().await?.accept(&poller, pair, &AcceptData::none(), WAIT).await?;
    let heard = client.next().await.context("no receive")??.into_buffer().context("no message")?;
    println!("the server heard: {}", String::from_utf8_lossy(&heard));
    client.send(heard)?.await?;
    println!("the end: {}", client.closed().await);
    Ok(())
}

async fn call(domain: &ProtectionDomain<Hello>, channel: &SharedChannel, server: SocketAddr) -> anyhow::Result<()> {
    let (pair, poller) = side(domain)?;
    let mut server = channel.connect(&poller, server, pair, &ConnectData::none(), WAIT).await?;
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
    match (env::args().nth(1).as_deref(), env::args().nth(2)) {
        (None, _) => {
            let port = context.active_port()?;
            let own = port.gids().iter().map(|row| row.gid.address()).find(IpAddr::is_ipv4);
            let listener = channel.listen((own.context("no GID of this device is an IPv4 address")?, 0).into())?;
            let at = listener.local_address().context("no address")?;
            tokio::try_join!(serve(&domain, listener), call(&domain, &channel, at)).map(|_| ())
        }
        (Some("server"), own) => {
            let own: IpAddr = own.as_deref().unwrap_or("0.0.0.0").parse()?;
            serve(&domain, channel.listen((own, PORT).into())?).await
        }
        (Some(server), _) => call(&domain, &channel, (server.parse::<IpAddr>()?, PORT).into()).await,
    }
}
