//! # 2. Hello on two machines
//!
//! Two machines connect by an IP address and a port, as with TCP. `rdma_cm`, the connection manager, finds the device
//! that leads to the address, and tells each side what its pair must know of the other's.
//!
//! ```sh
//! guide_02_two_machines server 192.0.2.1      # on one machine: its address on the RDMA network
//! guide_02_two_machines 192.0.2.1             # on the other
//! INTERLOCK_DEVICE=soft0 guide_02_two_machines    # both ends here, on two threads
//! guide_02_two_machines both 192.0.2.1        # the same on an iWARP device, which does not tell its own address
//! ```
//!
//! (`guide_02_two_machines` is `cargo run --example guide_02_two_machines --`.) A soft device reaches its own process
//! only, so only the last two forms work on it.
//!
//! - The server listens. It gives `accept` a pair in Init with its receives posted. `accept` keeps the pair, and the
//!   connection gives it back, in Ready To Send.
//! - The client gives its pair to `connect`. If nobody listens, the error says so.
//! - The errors of these calls give the pair back. `into_cause` drops it at once; with `?` alone, the error keeps it.
//! - Both calls carry a few bytes of *private data*. Here the server grants a region in them, so that the client reads
//!   the server's memory without a message. `framed` keeps their length.
//! - `disconnect` tells the peer, whose `wait_end` returns. If the peer's process dies, `wait_end` returns too.
//!
//! Chapter 10 connects without `rdma_cm`.
use anyhow::{Context as _, bail};
use interlock::cm::{self, AcceptData, ConnectData, Listener, Parameters};
use interlock::{Context, Init, Limits, Poller, ProtectionDomain, QueuePair, RemoteRead, RemoteRegion, Work};
use std::net::{Ipv6Addr, ToSocketAddrs};
use std::time::Duration;
use std::{env, thread};

interlock::domain! { struct Hello; }

const PORT: u16 = 18515;
const WAIT: Duration = Duration::from_secs(60);

fn pair(domain: &ProtectionDomain<Hello>) -> anyhow::Result<(QueuePair<Hello, Init>, Poller<Hello>)> {
    let (queue, poller) = domain.completion_queue(Limits::default().completions())?;
    let port = domain.context().active_port()?;
    Ok((domain.reliable(&queue, &Limits::default())?.into_init(&port)?, poller))
}

fn serve(domain: &ProtectionDomain<Hello>, mut listener: Listener) -> anyhow::Result<()> {
    let board = domain.register::<RemoteRead, _>(b"hello from the server\0\0\0".to_vec())?; // padded to 8-byte words
    let (mut pair, mut poller) = pair(domain)?;
    pair.post_receive(domain.buffer(64)?)?;
    let grant = AcceptData::framed(&board.remote().to_bytes())?;
    let accepting = listener.next(WAIT)?.accept(pair, &Parameters::default(), &grant);
    let accepting = accepting.map_err(|failed| failed.into_cause())?;
    let mut connection = accepting.wait(WAIT).map_err(|failed| failed.into_cause())?;

    let Work::Received(heard) = poller.wait(WAIT)?.check()?.into_work() else { bail!("no message") };
    println!("the server heard: {}", String::from_utf8_lossy(&heard.buffer));
    connection.wait_end(WAIT)?.context("the client stays")?;
    Ok(())
}

fn call(domain: &ProtectionDomain<Hello>, server: impl ToSocketAddrs) -> anyhow::Result<()> {
    let (pair, mut poller) = pair(domain)?;
    let connection = cm::connect(server, pair, &ConnectData::none(), WAIT);
    let mut connection = connection.map_err(|failed| failed.into_cause())?;
    let grant = connection.data.framed().context("no grant")?;
    let board = RemoteRegion::<RemoteRead>::from_bytes(grant)?;

    connection.pair.post_read(domain.buffer(board.len().try_into()?)?, &board)?;
    let Work::Read(seen) = poller.wait(WAIT)?.check()?.into_work() else { bail!("no text") };
    println!("read: {}", String::from_utf8_lossy(&seen).trim_end_matches('\0'));
    let mut message = domain.buffer(64)?;
    message.write(b"hello from the client")?;
    connection.pair.post_send(message)?;
    poller.wait(WAIT)?.check()?;
    connection.disconnect().map_err(|failed| failed.into_cause())?.pair.drain(&mut poller, WAIT, drop)?;
    Ok(())
}

/// The address that a RoCE or soft device has among its GIDs.
fn own_address(context: &Context) -> anyhow::Result<String> {
    let port = context.active_port()?;
    let own = port.gids().iter().find_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped());
    Ok(own.context("no GID of this device is an IPv4 address: name one, as in `both 192.0.2.1`")?.to_string())
}

fn main() -> anyhow::Result<()> {
    let context = Context::open_default()?;
    let domain = context.named_domain(Hello)?;
    match (env::args().nth(1).as_deref(), env::args().nth(2)) {
        (None | Some("both"), at) => {
            let listener = cm::listen(&context, (at.map_or_else(|| own_address(&context), Ok)?, 0))?;
            let at = listener.local_address().context("no address")?;
            thread::scope(|scope| {
                let server = scope.spawn(|| serve(&domain, listener));
                call(&domain, at)?;
                server.join().expect("no panic")
            })
        }
        (Some(_), _) if context.is_soft() => bail!("a soft device does not reach other processes: give no host"),
        (Some("server"), at) => serve(&domain, cm::listen(&context, (at.as_deref().unwrap_or("0.0.0.0"), PORT))?),
        (Some(host), _) => call(&domain, (host, PORT)),
    }
}
