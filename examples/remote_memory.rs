//! A client asks for memory of the server, writes a part of it, and hands it to the server's program.
//!
//! ```sh
//! INTERLOCK_DEVICE=soft0 cargo run --features tokio --example remote_memory
//! ```
//!
//! Both ends are tasks of this program. Two machines would have one each, connected by `aio::cm` or `aio::tcp`.
use anyhow::Context as _;
use interlock::aio::lend::{CONTROL_BYTES, Lending, LendingOptions, LendingReceiver, Quota};
use interlock::aio::{SharedPoller, spawn};
use interlock::{Context, Limits, ProtectionDomain, QueuePair, RemoteReadWrite};
use std::num::NonZeroU64;
use std::time::Duration;

interlock::domain! { struct Shelf; }

const WAIT: Duration = Duration::from_secs(60);
const LIMITS: Limits = Limits { sends: 8, receives: 8, ..Limits::DEFAULT };

fn main() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(both())
}

async fn both() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let port = context.active_port()?;
    let domain = context.named_domain(Shelf)?;
    let (queue, poller) = domain.completion_queue(2 * LIMITS.completions())?;
    let client_pair = domain.reliable(&queue, &LIMITS)?.into_init(&port)?;
    let server_pair = domain.reliable(&queue, &LIMITS)?.into_init(&port)?;
    let (to_client, to_server) = (client_pair.endpoint(), server_pair.endpoint());
    let poller = SharedPoller::new(poller);
    spawn(poller.driver().context("there is a driver already")?)?;
    let quota = Quota { bytes: 1 << 20, grants: 1 }; // the most that the server lends to its peer
    let (client_lending, of_client) = start(&domain, &poller, client_pair.connect(&to_server)?, Quota::NOTHING)?;
    let (server_lending, of_server) = start(&domain, &poller, server_pair.connect(&to_client)?, quota)?;
    tokio::spawn(of_client.run());
    tokio::spawn(of_server.run());

    let server = tokio::spawn(server(domain.clone(), server_lending));
    client(domain, client_lending).await?;
    server.await?
}

/// Asks for memory, writes the first half of it, and hands it over.
async fn client(domain: ProtectionDomain<Shelf>, lending: Lending<Shelf>) -> anyhow::Result<()> {
    let bytes = NonZeroU64::new(64).context("some bytes")?;
    let memory = lending.request::<RemoteReadWrite>(bytes, WAIT).await?;
    let mut text = domain.buffer(32)?;
    text.write(b"hello, memory of the server")?;
    memory.slice(0..32)?.write(text)?.await?;
    memory.give_back().confirmed().await; // from here on the client cannot write
    Ok(())
}

/// Lends memory that the client asks for. Prints it when it comes back, which is at the deadline at the latest.
async fn server(domain: ProtectionDomain<Shelf>, lending: Lending<Shelf>) -> anyhow::Result<()> {
    let asked = lending.asked().await.context("the client is gone")?;
    let memory = domain.buffer(asked.len_bytes().next_multiple_of(8).try_into()?)?;
    let lease = domain.lease::<RemoteReadWrite, _>(memory, asked.duration().min(WAIT))?;
    let (memory, over) = asked.answer(lease)?.ended().await?;
    println!("{over:?}: {}", String::from_utf8_lossy(&memory[..27]));
    Ok(())
}

type Lender = (Lending<Shelf>, LendingReceiver<Shelf>);

fn start(
    domain: &ProtectionDomain<Shelf>,
    poller: &SharedPoller<Shelf>,
    pair: QueuePair<Shelf>,
    quota: Quota,
) -> anyhow::Result<Lender> {
    let (sender, receiver) = poller.split(pair)?;
    let options = LendingOptions { quota, ..LendingOptions::default() };
    let (lending, mut messages) = Lending::start(domain, poller, sender.into_shared(), receiver, &options)?;
    domain.buffers(8, CONTROL_BYTES)?.into_iter().try_for_each(|buffer| messages.post_receive(buffer).map(drop))?;
    Ok((lending, messages))
}
